/* Shown for an address that names no page: a typing mistake, or a link of another version. */
import { h } from "../view.js";
import { emptyNote } from "../widgets.js";

export class NotFoundPage {
  address = location.hash;

  title() {
    return "No such page";
  }

  view() {
    const advice =
      `Nothing is at ${this.address}. The pages are at the side; a job is at #/job/ID, a task at #/task/ID, ` +
      "a swarm at #/swarm/ID.";
    return h("section.panel", emptyNote("No such page", advice));
  }
}
