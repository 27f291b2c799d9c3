// Makes elements. Text is only ever inserted as text: no function here, or elsewhere, takes markup.

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// `on` has listeners by the names of their events; an attribute that is null, undefined or false is left out.
function fill(element, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// What is asked for, beside what it is called: the two stay on one line.
export function field(name, input) {
  return el("span", { class: "field" }, el("label", { for: input.id }, name), input);
}

export function replace(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

// A table: `columns` are [title, function from row to cell, class]. A cell is a text or an element.
export function table(columns, rows, empty) {
  if (!rows.length) return el("p", { class: "quiet" }, empty);
  const head = el("tr", {}, ...columns.map(([title, , kind]) => el("th", { class: kind, scope: "col" }, title)));
  const body = rows.map((row) => el("tr", {}, ...columns.map(([, cell, kind]) => el("td", { class: kind }, cell(row)))));
  return el("div", { class: "wide" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
}

export function facts(entries) {
  return el("dl", {}, ...entries.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}
