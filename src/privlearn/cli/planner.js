"use strict";
// Sliders ask the server, which asks the accountant. Nothing is computed here: texts and pictures are put in place.
const at = (id) => document.getElementById(id);
const fields = [...document.querySelectorAll(".field[data-name]")];
const number = (field) => field.querySelector('input[type="number"]');

// A slider beside each number: it steps through round values, the number itself may be any.
for (const field of fields) {
  const values = field.dataset.values.split(" "), input = number(field), slider = document.createElement("input");
  Object.assign(slider, { type: "range", min: 0, max: values.length - 1, step: 1 });
  slider.setAttribute("aria-label", `${field.querySelector("label").textContent}, slider`);
  for (const part of [slider, input]) part.setAttribute("aria-describedby", `${input.id}-note`);
  const follow = () => {
    const next = values.findIndex((value) => Number(value) >= Number(input.value));
    slider.value = next < 0 ? values.length - 1 : next;
    slider.setAttribute("aria-valuetext", input.value);
  };
  slider.addEventListener("input", () => { input.value = values[slider.value]; slider.setAttribute("aria-valuetext", input.value); ask(); });
  input.addEventListener("input", () => { follow(); ask(); });
  field.follow = follow;
  input.after(slider);
}
at("sampling").addEventListener("change", ask);
for (const choice of document.getElementsByName("solve")) choice.addEventListener("change", ask);
at("plan").addEventListener("submit", (event) => event.preventDefault());

// The plan as options, and back from the address.
function options() {
  const solve = document.querySelector('[name="solve"]:checked').value, chosen = new URLSearchParams();
  for (const field of fields) {
    const name = field.dataset.name, whole = name === "batch-size" && at("sampling").value === "full";
    if (["epsilon", "noise-multiplier"].includes(name)) field.hidden = name !== solve;
    if (name === "batch-size") for (const input of field.querySelectorAll("input")) input.disabled = whole;
    if (!field.hidden && !whole && name !== "runs") chosen.set(name, number(field).value);
  }
  chosen.set("sampling", at("sampling").value);
  return chosen;
}
function begin() {
  for (const [name, value] of new URLSearchParams(location.search)) {
    if (name === "sampling" || fields.some((field) => field.dataset.name === name)) at(name).value = value;
    const solve = document.querySelector(`[name="solve"][value="${CSS.escape(name)}"]`);
    if (solve) solve.checked = true;
  }
  for (const field of fields) field.follow();
  ask();
}

// One question at a time; the last one that was asked is the one that counts.
let waiting, late, asked = 0;
function ask() {
  clearTimeout(waiting);
  const mine = ++asked, plan = options(), runs = new URLSearchParams(plan);
  runs.set("runs", at("runs").value);
  waiting = setTimeout(() => answer(mine, plan, runs), 40);
}
async function answer(mine, plan, runs) {
  clearTimeout(late);
  late = setTimeout(() => { if (mine === asked) busy(true); }, 100);
  try {
    history.replaceState(null, "", `?${runs}`);
    for (const [path, query, show] of [["figures", plan, showFigures], ["several", runs, showSeveral], ["spending", plan, showSpending], ["samplings", plan, showSamplings]]) {
      const reply = await fetch(`/${path}?${query}`), said = await reply.json();
      if (mine !== asked) return;
      if (said.error) return refuse(said.error);
      show(said);
    }
    at("error").hidden = true;
    at("answer").hidden = false;
    at("state").textContent = "Computed.";
  } catch {
    if (mine === asked) refuse("The planner does not answer: is privlearn budget --serve still running?");
  } finally {
    if (mine === asked) { clearTimeout(late); busy(false); }
  }
}
function busy(yes) {
  at("state").classList.toggle("busy", yes);
  at("answer").setAttribute("aria-busy", yes);
  if (yes) at("state").textContent = "Computing … the figures below are of the plan before.";
}
function refuse(text) {
  at("error").textContent = text;
  at("error").hidden = false;
  at("answer").hidden = true;
  at("state").textContent = "";
}

const say = (id, text) => { at(`say-${id}`).textContent = text; };
function items(parent, tag, texts, name) {
  parent.replaceChildren(...texts.map((text) => Object.assign(document.createElement(tag), { textContent: text, className: name || "" })));
}
function draw(id, picture) { at(id).innerHTML = picture; } // made by the server, of numbers
function showFigures({ figures, said, warnings, picture, command, python }) {
  for (const name of ["epsilon", "method", "success", "noise", "batch"]) say(name, said[name]);
  say("steps", figures.steps);
  items(at("warnings"), "p", warnings, "note warn");
  items(at("meaning"), "li", said.meaning);
  draw("tradeoff", picture);
  at("command").textContent = command;
  at("python").textContent = python;
}
function showSeveral({ runs, said }) {
  say("runs", runs);
  for (const name of ["fixed", "adaptive", "together"]) say(name, said[name]);
}
function showSpending({ picture }) { draw("spending", picture); }
function showSamplings({ rows, by }) {
  at("by").textContent = by === "noise" ? "noise that it needs" : "epsilon";
  at("samplings").replaceChildren(...rows.map((row) => {
    const line = document.createElement("tr"), head = document.createElement("th"), about = document.createElement("span");
    head.scope = "row";
    about.className = "quiet";
    about.textContent = row.about;
    head.append(row.sampling, document.createElement("br"), about);
    line.append(head);
    line.className = row.sampling === at("sampling").value ? "chosen" : "";
    if (row.refused) {
      const why = line.insertCell();
      why.colSpan = 5;
      why.textContent = row.refused;
      return line;
    }
    for (const text of [row.neighbours, row.steps, row.noise, row.epsilon]) line.insertCell().textContent = text;
    const track = document.createElement("span"), bar = document.createElement("span");
    track.className = "track";
    bar.className = "bar";
    bar.style.width = `${row.share * 100}%`;
    track.append(bar);
    line.insertCell().append(track);
    return line;
  }));
}
for (const button of document.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(at(button.dataset.copies).textContent);
    at("copied").textContent = "Copied.";
  });
}
begin();
