/* A small virtual tree: pages describe what they show, `draw` changes only what differs, so that focus, selection and
 * scroll positions stay while events arrive. Text goes through plain(); nothing is ever parsed as HTML. */
import { plain } from "./plain.js";

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "indeterminate", "readOnly"]);

/* h("a.button", {href, on: {click}, style: {"--w": "3%"}, key, made(el)}, ...children) */
export function h(tag, props, ...children) {
  if (props === null || typeof props !== "object" || Array.isArray(props) || props.tag !== undefined || props.text !== undefined) {
    if (props !== undefined) children.unshift(props);
    props = {};
  }
  const [name, ...classes] = tag.split(".");
  const own = classes.join(" ");
  return {
    tag: name,
    key: props.key,
    props,
    name: own && props.class ? `${own} ${props.class}` : own || props.class || "",
    children: flat(children, []),
    el: null,
  };
}

function flat(items, into) {
  for (const item of items) {
    if (item === null || item === undefined || item === false || item === true) continue;
    if (Array.isArray(item)) flat(item, into);
    else if (typeof item === "object") into.push(item);
    else into.push({ text: plain(item), el: null });
  }
  return into;
}

/* Makes `place` show exactly this tree. */
export function draw(place, tree) {
  const next = flat([tree], []);
  reconcile(place, place.drawn || [], next, false);
  place.drawn = next;
}

function make(node, svg) {
  if (node.text !== undefined) return (node.el = document.createTextNode(node.text));
  const inside = svg || node.tag === "svg";
  const el = (node.el = inside ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag));
  el.handlers = {};
  apply(el, { props: {}, name: "" }, node);
  for (const child of node.children) el.append(make(child, inside));
  // A select takes its value only when it has its options.
  if (node.tag === "select" && node.props.value !== undefined) el.value = node.props.value;
  if (node.props.made) node.props.made(el);
  return el;
}

function apply(el, before, node) {
  if (before.name !== node.name) el.setAttribute("class", node.name);
  const old = before.props;
  const props = node.props;
  for (const name in old) if (!(name in props)) set(el, name, null, old[name]);
  for (const name in props) if (old[name] !== props[name] || PROPERTIES.has(name)) set(el, name, props[name], old[name]);
}

function set(el, name, value, old) {
  if (name === "key" || name === "class" || name === "made") return;
  if (name === "on") {
    for (const kind in value || {}) {
      if (!(kind in el.handlers)) el.addEventListener(kind, (event) => el.handlers[kind] && el.handlers[kind](event));
    }
    el.handlers = { ...value };
  } else if (name === "style") {
    for (const one in old || {}) if (!value || !(one in value)) el.style.removeProperty(one);
    for (const one in value || {}) if (!old || old[one] !== value[one]) el.style.setProperty(one, value[one]);
  } else if (PROPERTIES.has(name) && el.tagName !== "OPTION") {
    const wanted = value === null || value === undefined ? (name === "value" ? "" : false) : value;
    // While somebody types, what he typed is the newest value.
    if (name === "value" && el === document.activeElement && old !== undefined && old === value) return;
    if (el[name] !== wanted) el[name] = wanted;
  } else if (value === null || value === undefined || value === false) el.removeAttribute(name);
  else el.setAttribute(name, value === true ? "" : plain(value));
}

const same = (one, other) =>
  one.text !== undefined ? other.text !== undefined : one.tag === other.tag && one.key === other.key;

function reconcile(parent, before, next, svg) {
  const keyed = new Map();
  const loose = [];
  for (const node of before) {
    if (node.key !== undefined) keyed.set(node.key, node);
    else loose.push(node);
  }
  let at = 0;
  const kept = new Set();
  const pairs = next.map((node) => {
    let match = null;
    if (node.key !== undefined) match = keyed.get(node.key) || null;
    else {
      while (at < loose.length && !same(loose[at], node)) at += 1;
      if (at < loose.length) match = loose[at++];
    }
    if (match && (kept.has(match) || !same(match, node))) match = null;
    if (match) kept.add(match);
    return match;
  });
  for (const node of before) if (!kept.has(node)) node.el.remove();
  let place = parent.firstChild;
  next.forEach((node, index) => {
    const match = pairs[index];
    if (match) update(match, node, svg);
    else make(node, svg);
    if (node.el === place) place = place.nextSibling;
    else parent.insertBefore(node.el, place);
  });
}

function update(before, node, svg) {
  const el = (node.el = before.el);
  if (node.text !== undefined) {
    if (node.text !== before.text) el.data = node.text;
    return;
  }
  apply(el, before, node);
  reconcile(el, before.children, node.children, svg || node.tag === "svg");
  if (node.tag === "select" && node.props.value !== undefined && el.value !== node.props.value) el.value = node.props.value;
}
