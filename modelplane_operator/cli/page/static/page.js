// The fleet, as `modelplane page` tells it. Names and messages are others': they become text, and never markup.
"use strict";

const FIRST = 200; // rows of a list, until all are asked for
const TILES = 12; // clusters from which on a map is of use
const AGAIN = 5000; // ms: how often what is open in detail is asked for again

const rows = { page: new Map(), clusters: new Map(), models: new Map(), moves: new Map() };
const $ = (id) => document.getElementById(id);
const main = $("main");
let all = false; // whether all rows of the list are shown
let detail = null; // what is open, once it was answered: {path, found} or {path, error}
let drawn = new Map(); // key -> {row, element} of the list that is shown

// The token is behind the address's #, which browsers send to nobody; it is kept for this tab alone.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", "#/clusters");
}
const headers = { Authorization: `Bearer ${sessionStorage.getItem("token") ?? ""}` };

// Elements ------------------------------------------------------------------------------------------------------------

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "used") made.style.setProperty("--used", value);
    else if (value !== "" && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((one) => one !== "" && one !== null && one !== undefined));
  return made;
}

const link = (path, ...children) => el("a", { href: `#/${path.map(encodeURIComponent).join("/")}` }, ...children);
const state = (good, words) => el("span", { class: good ? "good" : "bad" }, words);
const share = (used, nodes) => (nodes ? Math.min(Math.max(used, 0) / nodes, 1) : 0);
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const many = (number) => number.toLocaleString("en");

function age(since) {
  if (!since) return "";
  const seconds = Math.max(Math.floor((Date.now() - Date.parse(since)) / 1000), 0);
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["m", 60]])
    if (seconds >= length) return `${Math.floor(seconds / length)}${unit}`;
  return `${seconds}s`;
}

function pool(one) {
  const bar = el("span", { class: "bar", "aria-hidden": "true", used: share(one.used, one.nodes) });
  return el("span", { class: "pool" }, bar, `${one.name} ${one.used}/${one.nodes}`);
}

function table(columns, lines) {
  const head = el("thead", {}, el("tr", {}, ...columns.map((name) => el("th", { scope: "col" }, name))));
  return el("table", {}, head, el("tbody", {}, ...lines));
}

function line(columns, cells) {
  const tds = cells.map((cell, at) => {
    const parts = Array.isArray(cell) ? cell : [cell];
    return el("td", { "data-label": columns[at], class: at ? "" : "name" }, ...parts);
  });
  return el("tr", {}, ...tds);
}

// Lists ---------------------------------------------------------------------------------------------------------------

const LISTS = {
  clusters: {
    columns: ["Cluster", "State", "Nodes used", "Replicas", "Pools", "Says"],
    cells: (one) => [
      link(["clusters", one.name], one.name),
      state(one.ready, one.ready ? "Ready" : one.reason || "not Ready"),
      `${one.used}/${one.nodes}`,
      `${one.replicas}`,
      one.pools.map(pool),
      [one.note, one.taints].filter(Boolean).join("; "),
    ],
    bad: (one) => !one.ready,
    none: "There is no InferenceCluster yet: modelplane register brings one.",
    summary(found) {
      const sum = (field) => found.reduce((total, one) => total + one[field], 0);
      const good = found.filter((one) => one.ready).length;
      return `${many(good)} of ${count(found.length, "cluster")} Ready, ${many(sum("used"))} of ` +
        `${count(sum("nodes"), "node")} used, ${count(sum("replicas"), "replica")}`;
    },
  },
  models: {
    columns: ["Model", "State", "Ready", "Nodes", "Since", "Clusters", "Why"],
    cells: (one) => [
      link(["models", one.namespace, one.name], `${one.namespace}/${one.name}`),
      state(one.ready, one.ready ? "Ready" : one.reason),
      `${one.running}/${one.desired}`,
      `${one.nodes}`,
      el("span", { "data-since": one.since }, age(one.since)),
      one.clusters.length > 3 ? `${one.clusters.slice(0, 3).join(", ")} and ${one.clusters.length - 3} more` : one.clusters.join(", "),
      one.ready ? "" : one.says,
    ],
    bad: (one) => !one.ready,
    none: "There is no ModelDeployment yet.",
    summary(found) {
      const good = found.filter((one) => one.ready).length;
      const sum = (field) => found.reduce((total, one) => total + one[field], 0);
      return `${many(good)} of ${count(found.length, "model")} Ready, ${many(sum("running"))} of ` +
        `${count(sum("desired"), "replica")} answering`;
    },
  },
  moves: {
    columns: ["Replica", "Of", "On", "Stage", "Since", "Says"],
    cells: (one) => [
      one.name,
      link(["models", one.namespace, one.model], `${one.namespace}/${one.model}`),
      one.cluster,
      one.stage,
      el("span", { "data-since": one.since }, age(one.since)),
      one.says,
    ],
    bad: () => false,
    none: "Nothing is under way.",
    summary: (found) => `${count(found.length, "replica")} on the way`,
  },
};

function shownOf(name) {
  const list = LISTS[name];
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [...rows[name]].filter(([, one]) => {
    const text = JSON.stringify(one).toLowerCase();
    return words.every((word) => text.includes(word));
  });
  return found.sort(([a, one], [b, other]) => list.bad(other) - list.bad(one) || (a < b ? -1 : 1));
}

function map(found) {
  const tiles = found.map(([, one]) => {
    const tile = link(["clusters", one.name]);
    const words = `${one.name}: ${one.ready ? "Ready" : one.reason}, ${one.used} of ${one.nodes} nodes used`;
    tile.title = words;
    tile.tabIndex = -1; // the table below has the same for the keyboard
    tile.style.setProperty("--used", share(one.used, one.nodes));
    if (!one.ready) tile.className = "bad";
    return el("li", {}, tile);
  });
  return el("ol", { class: "map", "aria-hidden": "true" }, ...tiles);
}

function drawList(name) {
  const list = LISTS[name];
  const found = shownOf(name);
  const visible = all ? found : found.slice(0, FIRST);
  const now = new Map();
  for (const [key, row] of visible) {
    const known = drawn.get(key);
    now.set(key, known && known.row === row ? known : { row, element: line(list.columns, list.cells(row)) });
  }
  drawn = now;
  const parts = [];
  parts.push(el("p", { class: "sum" }, rows[name].size ? list.summary(found.map(([, one]) => one)) : list.none));
  if (name === "moves") parts.push(...underWay());
  if (name === "clusters" && found.length >= TILES) parts.push(map(found));
  if (visible.length) parts.push(table(list.columns, [...now.values()].map((one) => one.element)));
  if (visible.length < found.length) {
    const more = el("button", { type: "button" }, `Show all ${many(found.length)}; ${many(visible.length)} are shown`);
    more.addEventListener("click", () => ((all = true), draw()));
    parts.push(el("p", {}, more));
  }
  return parts;
}

function underWay() {
  const told = [...rows.models].filter(([, one]) => one.progress);
  if (!told.length) return [];
  const columns = ["Model", "What is under way"];
  const lines = told.slice(0, FIRST).map(([key, one]) => line(columns, [link(["models", one.namespace, one.name], key), one.progress]));
  return [table(columns, lines), el("h2", {}, "Replicas")];
}

// Details -------------------------------------------------------------------------------------------------------------

function heading(list, name, good, words) {
  return el("div", {}, el("p", {}, link([list], `← ${list === "models" ? "Models" : "Clusters"}`)), el("h2", {}, name, " is ", state(good, words)));
}

function section(title, columns, lines) {
  return lines.length ? [el("h2", {}, title), table(columns, lines)] : [];
}

function drawModel(one) {
  const replicas = ["Replica", "Cluster", "Pool", "State", "Since", "Says"];
  const misses = ["Clusters", "Nearest", "Why not", "What would help"];
  const routes = ["Service", "URL", "State", "Says", "What would help"];
  return [
    heading("models", `${one.namespace}/${one.name}`, one.ready, one.ready ? "Ready" : `not Ready (${one.reason}${one.since ? `, for ${age(one.since)}` : ""})`),
    el("p", {}, one.cause),
    one.help.length ? el("p", { class: "faint" }, "What would help:") : "",
    el("ul", { class: "help" }, ...one.help.map((words) => el("li", {}, words))),
    one.decision === one.cause ? "" : el("p", { class: "faint" }, `The scheduler now: ${one.decision}`),
    ...(one.weights ?? []).map((words) => el("p", {}, words)),
    ...section("Replicas", replicas, one.replicas.map((r) => line(replicas, [
      r.name, link(["clusters", r.cluster], r.cluster), r.pool, state(r.ready, r.ready ? "Ready" : "not Ready"), age(r.since), r.says]))),
    ...(one.waiting ? section(`${count(one.waiting, "replica")} without a place`, misses, one.misses.map((m) => line(misses, [m.clusters, m.nearest, m.reason, m.remedy]))) : []),
    ...section("Services", routes, one.routes.map((r) => line(routes, [r.name, r.url, state(r.ready, r.ready ? "Ready" : "not Ready"), r.says, r.help]))),
  ];
}

function drawCluster({ cluster: one, conditions, replicas }) {
  const said = ["Condition", "Status", "Reason", "Since", "Says", "What to do"];
  const placed = ["Model", "Replica", "Pool", "Nodes", "State"];
  return [
    heading("clusters", one.name, one.ready, one.ready ? "Ready" : `not Ready (${one.reason})`),
    el("p", {}, `${one.used} of ${count(one.nodes, "node")} used, ${count(one.replicas, "replica")}, source ${one.source}${one.taints ? `, taints ${one.taints}` : ""}`),
    el("p", {}, ...one.pools.map(pool)),
    ...section("Conditions", said, conditions.map((c) => line(said, [c.type, c.status, c.reason, age(c.since), c.says, c.help]))),
    ...section("Replicas", placed, replicas.map((r) => line(placed, [
      link(["models", r.namespace, r.model], `${r.namespace}/${r.model}`), r.name, r.pool, `${r.nodes}`, state(r.ready, r.ready ? "Ready" : "not Ready")]))),
  ];
}

function drawHardware({ items }) {
  const columns = ["Class", "Device", "Per node", "Nodes free", "Clusters", "What it is", "Selector to paste"];
  const lines = items.map((one) => line(columns, [
    one.inferenceClass, one.device, `${one.perNode}`, `${one.free}/${one.nodes}`,
    one.clusters.length > 3 ? `${one.clusters.slice(0, 3).join(", ")} and ${one.clusters.length - 3} more` : one.clusters.join(", "),
    Object.entries({ ...one.capacity, ...one.attributes }).map((pair) => pair.join("=")).join(", "),
    el("code", {}, one.selector),
  ]));
  return [el("p", { class: "sum" }, items.length ? `${count(items.length, "kind")} of devices may be asked for` : "No cluster publishes devices."), table(columns, lines)];
}

const DETAILS = {
  models: { draw: drawModel, query: ([, namespace, name]) => `model?${new URLSearchParams({ namespace, name })}`, length: 3 },
  clusters: { draw: drawCluster, query: ([, name]) => `cluster?${new URLSearchParams({ name })}`, length: 2 },
  hardware: { draw: drawHardware, query: () => "hardware", length: 1 },
};

async function ask() {
  const path = location.hash;
  const found = route();
  const asked = DETAILS[found[0]];
  if (!asked || found.length !== asked.length) return;
  try {
    const answer = await fetch(`/api/${asked.query(found)}`, { headers });
    const said = await answer.json();
    if (path !== location.hash) return;
    detail = answer.ok ? { path, found: said } : { path, error: said.error };
  } catch {
    return; // the stream of rows tells that nobody answers
  }
  draw();
}

// What is shown -------------------------------------------------------------------------------------------------------

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return parts[0] in LISTS || parts[0] in DETAILS ? parts : ["clusters"];
}

function draw() {
  const found = route();
  const asked = DETAILS[found[0]];
  const page = rows.page.get("state") ?? {};
  $("context").textContent = [page.context, page.namespace && `namespace ${page.namespace}`].filter(Boolean).join(", ");
  $("trouble").hidden = !page.trouble;
  $("trouble").textContent = page.trouble ? `What is shown may be old: ${page.trouble}` : "";
  for (const one of document.querySelectorAll("nav a")) {
    const name = one.hash.slice(2);
    if (name === found[0]) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
    one.hidden = name === "clusters" && Boolean(page.namespace);
  }
  let parts;
  if (asked && found.length === asked.length) {
    if (detail?.path !== location.hash) parts = [el("p", {}, "asking")];
    else parts = detail.error ? [heading(found[0], found.slice(1).join("/"), false, "not to be seen"), el("p", {}, detail.error)] : asked.draw(detail.found);
  } else if (found[0] === "clusters" && page.namespace) {
    location.replace("#/models");
    return;
  } else {
    parts = page.synced === false ? [el("p", {}, "reading the hub")] : drawList(found[0]);
  }
  const focused = main.contains(document.activeElement) ? document.activeElement.hash : "";
  main.replaceChildren(...parts.filter(Boolean));
  if (focused) [...main.querySelectorAll("table a")].find((one) => one.hash === focused)?.focus({ preventScroll: true });
}

function arrived() {
  detail = null;
  drawn = new Map();
  all = false;
  draw();
  scrollTo(0, 0);
  if (route().length > 1) main.focus();
  ask();
}

let waiting = false;
function soon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => ((waiting = false), draw()));
}

// Keys ----------------------------------------------------------------------------------------------------------------

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target instanceof HTMLInputElement;
  if (event.key === "Escape") {
    if (typing && event.target.value) (event.target.value = ""), draw();
    else if (typing) event.target.blur();
    else if (route().length > 1) location.hash = `#/${route()[0]}`;
  } else if (typing) {
    if (event.key === "Enter") step(1);
  } else if (event.key === "/") {
    event.preventDefault();
    $("filter").focus();
  } else if (event.key === "j" || event.key === "k") {
    step(event.key === "j" ? 1 : -1);
  }
});

function step(by) {
  const links = [...main.querySelectorAll("tbody a")];
  const at = links.indexOf(document.activeElement);
  links[Math.min(Math.max(at + by, 0), links.length - 1)]?.focus();
}

$("filter").addEventListener("input", () => ((all = false), draw()));
addEventListener("hashchange", arrived);
setInterval(() => {
  for (const one of document.querySelectorAll("[data-since]")) one.textContent = age(one.dataset.since);
  if (!document.hidden) ask();
}, AGAIN);

// Rows as they change -------------------------------------------------------------------------------------------------

function take(text) {
  const { put, gone } = JSON.parse(text);
  for (const [group, changed] of Object.entries(put))
    for (const [key, row] of Object.entries(changed)) rows[group]?.set(key, row);
  for (const [group, keys] of Object.entries(gone)) for (const key of keys) rows[group]?.delete(key);
  soon();
}

function live(on, words) {
  $("live").textContent = words;
  $("live").className = on ? "on" : "";
}

async function follow() {
  const answer = await fetch("/api/rows", { headers });
  if (!answer.ok) throw new Error((await answer.json()).error);
  for (const group of Object.values(rows)) group.clear();
  live(true, "live");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("modelplane page has ended");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events)
      for (const said of event.split("\n")) if (said.startsWith("data: ")) take(said.slice(6));
  }
}

(async () => {
  arrived();
  for (;;) {
    try {
      await follow();
    } catch (error) {
      live(false, `not live: ${error instanceof TypeError ? "modelplane page does not answer" : error.message}`);
    }
    await new Promise((done) => setTimeout(done, 2000));
  }
})();
