// Asks the gateway every two seconds and shows what it says; says so when the gateway does not answer.
import { draw, forget } from "./charts.js";
import { showDetail, showLive, showNumbers, showSlowest } from "./tables.js";
import { byId, clock, count, element, say } from "./text.js";

const TIMEOUT_MS = 8000;
const choice = { window: "5m", lane: "", metric: "", vantage: "gateway" };
const state = { refreshMs: 2000, lostSince: null, page: null, busy: false, again: false, timer: 0, token: "" };

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => document.documentElement.dataset.theme;

// Private windows may refuse storage; the page then forgets the choice.
function remember(key, value) {
  try {
    if (value === undefined) return localStorage.getItem(`tailrace.${key}`);
    localStorage.setItem(`tailrace.${key}`, value);
  } catch { /* not remembered */ }
  return value ?? null;
}

function applyTheme() {
  const wanted = byId("theme").value;
  document.documentElement.dataset.theme = wanted === "auto" ? (dark.matches ? "dark" : "light") : wanted;
}

class Refused extends Error {}
class NotKnown extends Error {}

async function ask(path) {
  const headers = state.token ? { Authorization: `Bearer ${state.token}` } : {};
  // "no-cache" revalidates: an unchanged view costs a 304 and no body.
  const answer = await fetch(path, { headers, cache: "no-cache", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (answer.status === 401 || answer.status === 403) throw new Refused();
  const body = await answer.json().catch(() => ({ error: `status ${answer.status}, no JSON` }));
  if (answer.status === 404) throw new NotKnown(body.error);
  if (!answer.ok || !body.schema) throw new Error(body.error || `status ${answer.status}`);
  return body;
}

async function refresh() {
  clearTimeout(state.timer);
  if (state.busy) {
    state.again = true;
    return;
  }
  state.busy = true;
  try {
    const query = new URLSearchParams({ ...choice, theme: theme() });
    const [live, view] = await Promise.all([ask("/page/live"), ask(`/page/view?${query}`)]);
    found();
    if (state.page && live.page !== state.page) location.reload(); // another version answers now
    state.page = live.page;
    state.refreshMs = live.refresh_ms;
    showLive(live);
    byId("vantage-choice").hidden = !live.applications && choice.vantage === "gateway";
    showNumbers(view.summary);
    showLanes(view.lanes, Object.keys(live.lanes || {}));
    byId("metric").value = view.metric;
    showSlowest(view);
    showStatus(live, view);
    await Promise.all(view.pictures.map((picture) => draw(picture)));
  } catch (error) {
    if (error instanceof Refused) byId("token-form").hidden = false;
    else lost(error);
  } finally {
    state.busy = false;
    const soon = state.again;
    state.again = false;
    clearTimeout(state.timer);
    if (soon) refresh();
    else if (!document.hidden) state.timer = setTimeout(refresh, state.refreshMs);
  }
}

function lost(error) {
  state.lostSince ??= Date.now();
  const away = error instanceof TypeError || error.name === "TimeoutError";
  const what = away ? `The gateway at ${location.host} does not answer` : `The gateway at ${location.host} answers, but not with data (${error.message})`;
  byId("lost").hidden = false;
  say("lost", `${what}, since ${clock(state.lostSince)}. What is shown below is from then; asking again every ${state.refreshMs / 1000} s.`);
  document.body.classList.add("stale");
}

function found() {
  if (state.lostSince !== null) state.lostSince = null;
  byId("lost").hidden = true;
  byId("token-form").hidden = true;
  document.body.classList.remove("stale");
}

function showLanes(...names) {
  const all = [...new Set(names.flat())].sort();
  if (choice.lane && !all.includes(choice.lane)) all.push(choice.lane);
  const select = byId("lane");
  const now = JSON.stringify(all);
  if (select.dataset.names === now) return;
  select.dataset.names = now;
  select.replaceChildren(element("option", "every lane", { value: "" }), ...all.map((name) => element("option", name, { value: name })));
  select.value = choice.lane;
}

function showStatus(live, view) {
  const parts = [`Updated ${clock(live.now_unix_ms)}`];
  if (view.limited_to) parts.push(`the newest ${count(view.limited_to)} records of this window are shown`);
  if (view.models.length) parts.push(`models: ${view.models.join(", ")}`);
  if (live.loop_lag_ms !== undefined && live.loop_lag_ms !== null) parts.push(`gateway loop lag ${live.loop_lag_ms.toFixed(1)} ms`);
  if (live.host) parts.push(live.host);
  say("status", parts.join(" · "));
}

function fromHash(name) {
  const found = new RegExp(`^#${name}=(.+)$`).exec(location.hash);
  try {
    return found ? decodeURIComponent(found[1]) : null;
  } catch {
    return null; // a broken link
  }
}

function requested() {
  return fromHash("request");
}

async function openRequested() {
  const id = requested();
  if (id === null) {
    byId("detail").close();
    return;
  }
  try {
    await showDetail(await ask(`/page/request/${encodeURIComponent(id)}?theme=${theme()}&vantage=${choice.vantage}`));
  } catch (error) {
    if (error instanceof NotKnown) {
      say("status", `Request ${id}: ${error.message}`);
      history.replaceState(null, "", location.pathname);
    } else lost(error);
  }
}

function start() {
  byId("theme").value = remember("theme") || "auto";
  const token = fromHash("token");
  if (token) {
    state.token = token;
    history.replaceState(null, "", location.pathname); // out of sight and of the history
  }
  applyTheme();
  const change = () => {
    refresh();
  };
  for (const input of document.querySelectorAll("input[name=window]")) {
    input.checked = input.value === choice.window;
    input.addEventListener("change", () => {
      choice.window = input.value;
      change();
    });
  }
  for (const name of ["lane", "metric", "vantage"]) {
    byId(name).addEventListener("change", () => {
      choice[name] = byId(name).value;
      change();
    });
  }
  const repaint = () => {
    applyTheme();
    change();
    if (byId("detail").open) openRequested();
  };
  byId("theme").addEventListener("change", () => {
    remember("theme", byId("theme").value);
    repaint();
  });
  dark.addEventListener("change", repaint);
  byId("choices").addEventListener("submit", (event) => event.preventDefault());
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    state.token = byId("token").value;
    change();
  });
  byId("detail").addEventListener("close", () => {
    if (requested() !== null) history.replaceState(null, "", location.pathname);
  });
  byId("detail").addEventListener("click", (event) => {
    if (event.target === byId("detail")) byId("detail").close(); // the backdrop
  });
  addEventListener("hashchange", openRequested);
  addEventListener("resize", forget);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
  refresh();
  openRequested();
}

start();
