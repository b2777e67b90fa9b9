/* What accessibility.py asks of a shown page, inside it. One expression: an object of three functions. */
({
  // Of every text that is seen, over what lies behind it. A canvas turns any colour notation into its bytes.
  contrast() {
    const canvas = document.createElement("canvas"); canvas.width = canvas.height = 1;
    const paint = canvas.getContext("2d", {willReadFrequently: true});
    const known = new Map();
    const bytes = (colour) => {
      if (!known.has(colour)) {
        paint.clearRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data; known.set(colour, [r, g, b, a / 255]);
      }
      return known.get(colour);
    };
    const over = (top, below) => top.slice(0, 3).map((one, i) => one * top[3] + below[i] * (1 - top[3])).concat(1);
    const light = (colour) => {
      const [r, g, b] = colour.map((one) => { const v = one / 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (el) => {
      const layers = [];
      for (let one = el; one; one = one.parentElement) {
        if (one.tagName === "g" && one.classList.contains("node")) {
          layers.push(bytes(getComputedStyle(one.querySelector("rect")).fill)); continue;
        }
        layers.push(bytes(getComputedStyle(one).backgroundColor));
      }
      return layers.reverse().reduce((below, layer) => over(layer, below), bytes(getComputedStyle(document.body).backgroundColor));
    };
    const faint = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const text = walker.currentNode.data.trim(); const el = walker.currentNode.parentElement;
      if (!text || !el || !el.checkVisibility({checkOpacity: true, checkVisibilityCSS: true}) || el.closest(".unseen, .skip, title, option, [disabled], noscript")) continue;
      const style = getComputedStyle(el); const inside = el instanceof SVGElement;
      const ground = behind(el);
      const ink = over(bytes(inside ? style.fill : style.color), ground);
      const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
      const size = parseFloat(style.fontSize); const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      const ratio = (a + 0.05) / (b + 0.05);
      if (ratio < (large ? 3 : 4.5) - 0.01) faint.push(`${ratio.toFixed(2)}: ${JSON.stringify(text.slice(0, 40))} in ${el.tagName.toLowerCase()}.${el.getAttribute("class") || ""}`);
    }
    return [...new Set(faint)];
  },
  structure() {
    const faults = [];
    const ids = [...document.querySelectorAll("[id]")].map((el) => el.id);
    for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) faults.push(`id twice: ${id}`);
    for (const name of ["aria-labelledby", "aria-describedby", "aria-controls"]) {
      for (const el of document.querySelectorAll(`[${name}]`)) for (const id of el.getAttribute(name).split(/\s+/)) if (!document.getElementById(id)) faults.push(`${name} names nothing: ${id}`);
    }
    if (document.querySelectorAll("h1").length !== 1) faults.push("not exactly one h1");
    if (!document.title.trim()) faults.push("no title");
    if (!document.documentElement.lang) faults.push("no lang");
    for (const el of document.querySelectorAll("[tabindex]")) if (el.tabIndex > 0) faults.push(`tabindex above 0: ${el.outerHTML.slice(0, 80)}`);
    for (const el of document.querySelectorAll("input:not([type=hidden]), select, textarea")) if (!el.labels?.length && !el.getAttribute("aria-label")) faults.push(`no label: ${el.outerHTML.slice(0, 80)}`);
    for (const el of document.querySelectorAll("svg")) if (!el.getAttribute("aria-label") && el.getAttribute("aria-hidden") !== "true" && !el.closest("[aria-hidden=true]")) faults.push("an svg is neither named nor hidden");
    for (const el of document.querySelectorAll("th")) if (!el.scope) faults.push(`a th without scope: ${el.textContent}`);
    for (const el of document.querySelectorAll("button button, a a, a button, button a, label a")) faults.push(`nested: ${el.outerHTML.slice(0, 80)}`);
    for (const el of document.querySelectorAll("[style]")) if (el.getAttribute("style").includes("url(")) faults.push("a style with url()");
    for (const el of document.querySelectorAll("*")) {
      const scrolls = el.scrollHeight > el.clientHeight + 1 && ["auto", "scroll"].includes(getComputedStyle(el).overflowY) && el.clientHeight > 0;
      if (scrolls && el.tabIndex < 0 && !el.querySelector("a[href], button, input, [tabindex='0']")) faults.push(`scrolls, but not by keyboard: ${el.outerHTML.slice(0, 80)}`);
    }
    return faults;
  },
  focused() {
    const el = document.activeElement;
    if (!el || el === document.body) return null;
    const box = el.getBoundingClientRect();
    const shows = [el, el.closest(".card"), el.closest(".track"), el.querySelector("rect")].filter(Boolean).some((one) => {
      const style = getComputedStyle(one);
      return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || (one.tagName === "rect" && parseFloat(style.strokeWidth) >= 2);
    });
    // Which element, not what it looks like: two checkboxes may be written alike.
    if (!el.visit) el.visit = String((window.visits = (window.visits || 0) + 1));
    return {tag: el.tagName.toLowerCase(), id: el.id, visit: el.visit, name: (el.getAttribute("aria-label") || el.textContent || "").trim().slice(0, 60), shows, seen: box.width > 0 && box.height > 0};
  },
})
