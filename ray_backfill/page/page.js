// Adds to a page that is complete without it: lines to switch on and off, values at any moment, sorted tables.
"use strict";
document.documentElement.classList.add("js");
function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  return element.append(...children), element;
}

// One select for each thing that tells the charts of a group apart; only the chosen chart is shown.
function addSelects(group, charts, controls) {
  const choices = charts.map((chart) => JSON.parse(chart.dataset.choices));
  const selects = choices[0].map((_, level) => {
    const names = [...new Set(choices.map((choice) => choice[level]))];
    const select = make("select", { ariaLabel: "chart" }, ...names.map((name) => make("option", { textContent: name })));
    select.addEventListener("change", choose);
    return controls.appendChild(select);
  });
  function choose() {
    const isChosen = (choice) => selects.every((select, level) => select.value === choice[level]);
    charts.forEach((chart, index) => chart.classList.toggle("unchosen", !isChosen(choices[index])));
  }
  choose();
}

// A line is the same method in all charts of the group.
function addSwitches(group, controls) {
  const boxes = [...group.querySelectorAll("li input")];
  function set(key, on) {
    const same = (element) => element.dataset.key === key;
    [...group.querySelectorAll("[data-key]")].filter(same).forEach((element) => element.classList.toggle("off", !on));
    boxes.filter((box) => same(box.closest("li"))).forEach((box) => { box.checked = on; });
  }
  for (const box of boxes) {
    const row = box.closest("li");
    box.checked = !row.classList.contains("off");
    box.addEventListener("change", () => set(row.dataset.key, box.checked));
  }
  if (group.querySelector("li.off")) {
    const all = controls.appendChild(make("button", { type: "button", textContent: "all lines" }));
    all.addEventListener("click", () => boxes.forEach((box) => set(box.closest("li").dataset.key, true)));
  }
  if (group.querySelector(".band")) {
    const box = make("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => group.classList.toggle("without-bands", !box.checked));
    controls.append(make("label", {}, box, " intervals"));
  }
}

// A slider below the chart, or a pointer over it, chooses a moment; the legend then has the values at that moment.
function addReadOut(chart) {
  const svg = chart.querySelector(".plot svg");
  const places = chart.dataset.places.split(" ");
  const names = chart.dataset.names?.split("\t") ?? places;
  const [left, right, top, bottom, from, to] = chart.dataset.box.split(" ").map(Number);
  const header = chart.querySelector(".what");
  const parts = (row) => ({ row, output: row.querySelector("output"), values: row.dataset.values.split(" ") });
  const rows = [...chart.querySelectorAll("li")].map(parts);
  const usual = [header.textContent, ...rows.map(({ output }) => output.textContent)];
  const cursor = svg.appendChild(document.createElementNS(svg.namespaceURI, "line"));
  cursor.setAttribute("class", "cursor");
  const range = { type: "range", min: 0, max: places.length - 1, value: 0, ariaLabel: "moment" };
  const slider = chart.querySelector(".plot").appendChild(make("input", range));

  function show(index) {
    const x = left + ((places[index] - from) / (to - from)) * (right - left);
    for (const [name, value] of Object.entries({ x1: x, x2: x, y1: top, y2: bottom })) cursor.setAttribute(name, value);
    chart.classList.add("reading");
    header.textContent = `at ${names[index]} ${chart.dataset.place}`;
    for (const { output, values } of rows) output.textContent = values[index].replace("-", "\u2212") || "\u2013";
    const told = rows.filter(({ row }) => !row.classList.contains("off"))
      .map(({ row, output }) => `${row.querySelector(".title").textContent} ${output.textContent}`);
    slider.setAttribute("aria-valuetext", `${header.textContent}: ${told.join(", ")}`);
  }
  function restore() {
    chart.classList.remove("reading");
    [header.textContent] = usual;
    rows.forEach(({ output }, index) => { output.textContent = usual[index + 1]; });
  }
  svg.addEventListener("pointermove", (event) => {
    const size = svg.getBoundingClientRect();
    const at = (event.clientX - size.left) * (svg.viewBox.baseVal.width / size.width);
    const wanted = from + ((at - left) / (right - left)) * (to - from);
    const distances = places.map((place) => Math.abs(place - wanted));
    show((slider.value = distances.indexOf(Math.min(...distances))));
  });
  svg.addEventListener("pointerleave", restore);
  for (const name of ["input", "focus"]) slider.addEventListener(name, () => show(slider.value));
  slider.addEventListener("blur", restore);
}

function makeSortable(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = head.appendChild(make("button", { type: "button" }, ...head.childNodes));
    const key = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
    button.addEventListener("click", () => {
      const rows = [...body.rows], before = head.getAttribute("aria-sort");
      const numeric = rows.every((row) => !Number.isNaN(Number(key(row))));
      const down = before ? before === "ascending" : numeric;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      table.classList.add("sorted");
      const order = (a, b) => (numeric ? key(a) - key(b) : key(a).localeCompare(key(b)));
      // Missing numbers come last in both directions.
      rows.sort((a, b) => (key(a) === "") - (key(b) === "") || (down ? -1 : 1) * order(a, b)).forEach((row) => body.append(row));
    });
  });
}

for (const group of document.querySelectorAll(".charts")) {
  const charts = [...group.querySelectorAll(".chart")], controls = make("div", { className: "controls" });
  group.prepend(controls);
  addSelects(group, charts, controls);
  addSwitches(group, controls);
  charts.forEach(addReadOut);
}
document.querySelectorAll("table.sortable").forEach(makeSortable);
// A phone starts with the first table; the others are one tap away.
if (matchMedia("(max-width: 700px)").matches) document.querySelectorAll("details:not(.topic)").forEach((part) => { part.open = false; });
// Not every browser unfolds what a link leads to, and paper shows what is unfolded.
const unfold = () => { const to = document.getElementById(location.hash.slice(1))?.closest("details"); if (to) to.open = true; };
addEventListener("hashchange", unfold);
addEventListener("beforeprint", () => document.querySelectorAll(".topic").forEach((part) => { part.open = true; }));
unfold();
