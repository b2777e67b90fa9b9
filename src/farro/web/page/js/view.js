/* The view layer: a small virtual DOM.
 *
 * A page describes what it shows as plain data, made with `h`. `draw` compares that with what it drew before and
 * changes only what differs, so focus, selection and scroll positions survive while events arrive. Text becomes text
 * nodes that passed `safeText`; nothing is ever parsed as HTML. */
import { safeText } from "./safe_text.js";

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/* Set as properties of the element: their attributes hold only the first value. */
const LIVE_PROPERTIES = new Set(["value", "checked", "disabled", "selected", "indeterminate", "readOnly"]);

/* Read by this module; never written to the document. */
const RESERVED = new Set(["key", "class", "onCreate"]);

/* Describe an element: h("a.button.primary", { href, on: { click } }, "text", child, [more]).
 *
 * The properties may be left out. Besides attributes they may hold
 *   on        event handlers by event name
 *   style     values by CSS property, set through the CSSOM as the content security policy demands
 *   class     classes beyond those after the tag
 *   key       identity among siblings: a keyed element is moved rather than made again
 *   onCreate  called once with the new element
 * Children that are null, undefined or boolean are left out. */
export function h(selector, ...rest) {
  const properties = isProperties(rest[0]) ? rest.shift() : {};
  const [tag, ...classes] = selector.split(".");
  if (properties.class) classes.push(properties.class);
  return {
    tag,
    key: properties.key,
    properties,
    className: classes.join(" "),
    children: flatten(rest),
    element: null,
  };
}

const isNode = (value) => value.tag !== undefined || value.text !== undefined;
const isProperties = (value) =>
  typeof value === "object" && value !== null && !Array.isArray(value) && !isNode(value);

function flatten(items, flat = []) {
  for (const item of items) {
    if (item === null || item === undefined || typeof item === "boolean") continue;
    if (Array.isArray(item)) flatten(item, flat);
    else if (typeof item === "object") flat.push(item);
    else flat.push({ text: safeText(item), element: null });
  }
  return flat;
}

/* Make `container` show exactly this tree: a node, a list of nodes, or null. */
export function draw(container, tree) {
  const nodes = flatten([tree]);
  updateChildren(container, container.drawnNodes || [], nodes, false);
  container.drawnNodes = nodes;
}

function create(node, insideSvg) {
  if (node.text !== undefined) {
    node.element = document.createTextNode(node.text);
    return node.element;
  }
  const svg = insideSvg || node.tag === "svg";
  const element = svg ? document.createElementNS(SVG_NAMESPACE, node.tag) : document.createElement(node.tag);
  node.element = element;
  element.handlers = {};
  updateProperties(element, { properties: {}, className: "" }, node);
  for (const child of node.children) element.append(create(child, svg));
  selectValue(element, node);
  if (node.properties.onCreate) node.properties.onCreate(element);
  return element;
}

function update(before, node, insideSvg) {
  const element = before.element;
  node.element = element;
  if (node.text !== undefined) {
    if (node.text !== before.text) element.data = node.text;
    return;
  }
  updateProperties(element, before, node);
  updateChildren(element, before.children, node.children, insideSvg || node.tag === "svg");
  selectValue(element, node);
}

/* A select takes its value only once it has its options. */
function selectValue(element, { tag, properties }) {
  if (tag !== "select" || properties.value === undefined) return;
  if (element.value !== properties.value) element.value = properties.value;
}

function updateProperties(element, before, node) {
  if (before.className !== node.className) element.setAttribute("class", node.className);
  const old = before.properties;
  const properties = node.properties;
  for (const name in old) {
    if (!(name in properties)) setProperty(element, name, null, old[name]);
  }
  for (const name in properties) {
    // A live property may have been changed by the user since it was drawn.
    if (old[name] !== properties[name] || LIVE_PROPERTIES.has(name)) {
      setProperty(element, name, properties[name], old[name]);
    }
  }
}

function setProperty(element, name, value, old) {
  if (RESERVED.has(name)) return;
  if (name === "on") setHandlers(element, value || {});
  else if (name === "style") setStyle(element, value || {}, old || {});
  else if (LIVE_PROPERTIES.has(name) && element.tagName !== "OPTION") setLiveProperty(element, name, value, old);
  else if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : safeText(value));
}

/* One listener per event stays for the life of the element and calls the handler of the latest draw. */
function setHandlers(element, handlers) {
  for (const kind in handlers) {
    if (kind in element.handlers) continue;
    element.addEventListener(kind, (event) => element.handlers[kind] && element.handlers[kind](event));
  }
  element.handlers = { ...handlers };
}

function setStyle(element, style, old) {
  for (const name in old) {
    if (!(name in style)) element.style.removeProperty(name);
  }
  for (const name in style) {
    if (old[name] !== style[name]) element.style.setProperty(name, style[name]);
  }
}

function setLiveProperty(element, name, value, old) {
  const absent = name === "value" ? "" : false;
  const wanted = value ?? absent;
  // In a focused field the text that the user typed is newer than the drawn value.
  const typing = name === "value" && element === document.activeElement && old !== undefined && old === value;
  if (!typing && element[name] !== wanted) element[name] = wanted;
}

function isSameKind(one, other) {
  if (one.text !== undefined) return other.text !== undefined;
  return one.tag === other.tag && one.key === other.key;
}

function updateChildren(parent, before, nodes, insideSvg) {
  const matches = matchNodes(before, nodes);
  const kept = new Set(matches);
  for (const node of before) {
    if (!kept.has(node)) node.element.remove();
  }
  let position = parent.firstChild;
  nodes.forEach((node, index) => {
    if (matches[index]) update(matches[index], node, insideSvg);
    else create(node, insideSvg);
    if (node.element === position) position = position.nextSibling;
    else parent.insertBefore(node.element, position);
  });
}

/* For each new node, the old node whose element it takes over, or null. Keyed nodes match by key, others in order. */
function matchNodes(before, nodes) {
  const keyed = new Map(before.filter((node) => node.key !== undefined).map((node) => [node.key, node]));
  const unkeyed = before.filter((node) => node.key === undefined);
  const taken = new Set();
  let next = 0;
  return nodes.map((node) => {
    let match = null;
    if (node.key !== undefined) match = keyed.get(node.key) || null;
    else {
      while (next < unkeyed.length && !isSameKind(unkeyed[next], node)) next += 1;
      match = unkeyed[next] || null;
      next += 1;
    }
    if (!match || taken.has(match) || !isSameKind(match, node)) return null;
    taken.add(match);
    return match;
  });
}
