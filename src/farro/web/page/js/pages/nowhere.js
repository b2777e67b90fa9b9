/* An address that leads nowhere: a typing mistake, or a link of another version. */
import { empty } from "../parts.js";
import { h } from "../view.js";

export function nowhere() {
  const asked = location.hash;
  return {
    title: () => "No such page",
    view: () => h("section.panel", empty("No such page", `Nothing is at ${asked}. The pages are at the side; a job is at #/job/ID, a task at #/task/ID, a swarm at #/swarm/ID.`)),
  };
}
