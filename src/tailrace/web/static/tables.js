// The header's numbers, the tables and the detail view.
import { draw } from "./charts.js";
import { byId, clock, count, duration, element, percent, rate, say } from "./text.js";

function metric(id, now) {
  const place = byId(id);
  if (!now || !now.n) {
    say(id, "–");
    say(`${id}-note`, "no completed request in this window");
    return;
  }
  const parts = [["p50", now.p50], now.p99 === undefined || now.p99 === null ? ["longest", now.max] : ["p99", now.p99]];
  const text = parts.map(([name, value]) => `${name}${duration(value)}`).join();
  if (place.dataset.text !== text) {
    place.dataset.text = text;
    place.replaceChildren(...parts.flatMap(([name, value]) => {
      const pair = element("span", null, { class: "pair-of" });
      pair.append(element("small", `${name} `), duration(value));
      return [pair, " "];
    }));
  }
  say(`${id}-note`, now.p99_needs ? `n ${count(now.n)}; a p99 needs n ≥ ${count(now.p99_needs)}` : `n ${count(now.n)}, longest ${duration(now.max)}`);
}

export function showNumbers(summary) {
  say("rate", `${rate(summary.requests_per_s)} /s`);
  say("rate-note", `${count(summary.n)} ended, ${rate(summary.tokens_per_s)} tokens/s`);
  metric("ttft", summary.metrics.ttft_ms);
  metric("tpot", summary.metrics.tpot_ms);
  say("errors", summary.n ? percent(summary.failed / summary.n) : "–");
  say("errors-note", `${count(summary.failed)} failed, timed out or refused; ${count(summary.cancelled)} cancelled`);
}

export function showLive(live) {
  say("in-flight", count(live.in_flight));
  const now = live.engine_state || {};
  const seen = [];
  if (typeof now.running === "number") seen.push(`engine runs ${count(now.running)}, ${count(now.waiting)} wait`);
  if (typeof now.kv_usage === "number") seen.push(`KV ${percent(now.kv_usage)}`);
  say("in-flight-note", seen.join(", ") || "engine gives no metrics");
  const lanes = Object.entries(live.lanes || {});
  const known = lanes.filter(([, lane]) => lane.queued !== undefined);
  say("queue", known.length ? count(known.reduce((sum, [, lane]) => sum + lane.queued, 0)) : "–");
  const waits = known.slice(0, 6).map(([name, lane]) => `${name} ${count(lane.queued)}`);
  const givenUp = (live.given_up || []).join(", ");
  say("queue-note", [...(givenUp ? [`degraded: ${givenUp}`] : []), ...waits].join(" · ") || "no lane has been used yet");
  const dropped = Object.entries(live.dropped || {}).filter(([, number]) => number > 0);
  byId("dropped-tile").hidden = !dropped.length;
  say("dropped", count(dropped.reduce((sum, [, number]) => sum + number, 0)));
  say("dropped-note", `${dropped.map(([name, number]) => `${name} ${count(number)}`).join(", ")}: what is shown is incomplete`);
  say("target", live.title || "");
  const engine = [live.engine, live.engine_version].filter(Boolean).join(" ");
  say("engine", live.upstream_ok === false ? `${engine || "the engine"} does not answer` : live.engine_trouble || engine);
  byId("simulated").hidden = !live.simulated;
  showLanes(lanes);
  showStreams(live);
}

function rows(table, made) {
  byId(table).tBodies[0].replaceChildren(...made);
}

function cell(text, kind = "text") {
  return element("td", text, { class: kind });
}

function limited(now, limit) {
  return limit === undefined || limit === null ? count(now) : `${count(now)} of ${count(limit)}`;
}

function showLanes(lanes) {
  const waiting = lanes.filter(([, lane]) => lane.queued > 0).map(([name]) => name);
  say("lanes-title", !lanes.length ? "No lane has been used yet" : waiting.length ? `Requests wait in ${waiting.slice(0, 4).join(", ")}` : "Nobody waits in a lane");
  byId("lanes").hidden = !lanes.length;
  rows("lanes", lanes.map(([name, lane]) => {
    const row = element("tr");
    row.append(cell(name), cell(limited(lane.running, lane.running_limit), "number"), cell(limited(lane.queued, lane.queued_limit), "number"),
      cell(lane.queued ? duration(lane.oldest_wait_ms) : "–", "number"));
    return row;
  }));
}

function showStreams(live) {
  const streams = live.streams || [];
  const total = live.in_flight ?? streams.length;
  say("streams-title", !streams.length ? "No request is in flight" : total > streams.length ? `The ${streams.length} oldest of ${count(total)}` : `${count(total)} in flight`);
  byId("streams").hidden = !streams.length;
  rows("streams", streams.map((stream) => {
    const row = element("tr");
    const stage = element("td", null, { class: "text" });
    stage.append(element("i", null, { class: "swatch inline", "data-stage": stream.stage || "" }), ` ${stream.stage || "–"}`);
    row.append(cell(short(stream.request_id), "id"), cell(stream.lane), stage, cell(duration(stream.age_ms), "number"), cell(count(stream.tokens), "number"));
    row.cells[0].title = stream.request_id || "";
    return row;
  }));
}

function short(id) {
  return id && id.length > 14 ? `${id.slice(0, 13)}…` : id;
}

// A stacked bar in plain elements; `full` is the value (ms) that fills the width.
export function stageBar(place, stages, full) {
  place.setAttribute("role", "img");
  const total = stages.reduce((sum, [, ms]) => sum + ms, 0);
  place.setAttribute("aria-label", stages.map(([stage, ms]) => `${stage} ${duration(ms)}`).join(", "));
  place.replaceChildren(...stages.map(([stage, ms]) => {
    const part = element("i", null, { "data-stage": stage, title: `${stage}: ${duration(ms)} (${percent(total ? ms / total : 0)})` });
    part.style.width = `${full ? (100 * ms) / full : 0}%`;
    return part;
  }));
}

function outcome(request) {
  if (request.outcome === "completed") return "completed";
  const reason = request.reason ? `: ${request.reason}` : "";
  return `${request.outcome.replace("_", " ")}${reason}${request.died_in ? ` in ${request.died_in}` : ""}`;
}

const METRIC_NAMES = { e2e: "end-to-end time", ttft: "time to first token", tpot: "time per output token" };

export function showSlowest(view) {
  say("slowest-title", view.slowest.length ? `The ${view.slowest.length} with the longest ${METRIC_NAMES[view.metric]}` : "Nothing to rank yet");
  byId("slowest").hidden = !view.slowest.length;
  byId("slowest-empty").hidden = Boolean(view.slowest.length);
  const table = byId("slowest");
  const text = JSON.stringify(view.slowest);
  if (table.dataset.text === text) return;
  // A refresh must not take the keyboard's place away.
  const focused = table.contains(document.activeElement) ? document.activeElement.hash : "";
  table.dataset.text = text;
  const full = Math.max(...view.slowest.map((request) => request.e2e_ms));
  rows("slowest", view.slowest.map((request) => {
    const row = element("tr");
    const id = element("td", null, { class: "id" });
    id.append(element("a", short(request.id), { href: `#request=${encodeURIComponent(request.id)}`, title: request.id }));
    const bar = element("td", null, { class: "bar-column" });
    const strip = element("div", null, { class: "bar" });
    stageBar(strip, request.stages, full);
    bar.append(strip);
    const end = cell(outcome(request), request.outcome === "completed" ? "text" : "text failed");
    if (request.error) end.title = request.error;
    row.append(id, cell(clock(request.start_unix_ms), "number"), cell(request.lane), cell(count(request.prompt_tokens), "number"),
      cell(count(request.output_tokens), "number"), cell(duration(request.ttft_ms), "number"), cell(duration(request.tpot_ms), "number"),
      cell(duration(request.e2e_ms), "number"), bar, end);
    return row;
  }));
  if (focused) [...table.querySelectorAll("a")].find((link) => link.hash === focused)?.focus();
}

export async function showDetail(detail) {
  const request = detail.request;
  say("detail-title", `Request ${request.id}`);
  const stalls = detail.stalls ? `, ${count(detail.stalls)} stalls (longest ${duration(detail.stall_longest_ms)})` : "";
  say("detail-line", `${new Date(request.start_unix_ms).toLocaleString("en-GB")}, ${outcome(request)}, end to end ${duration(request.e2e_ms)}, first token ${duration(request.ttft_ms)}${stalls}`);
  stageBar(byId("detail-bar"), request.stages, request.e2e_ms);
  rows("detail-stages", detail.stages.map((stage) => {
    const row = element("tr", null, stage.stage.includes(".") ? { class: "part" } : {});
    const name = element("td");
    name.append(element("i", null, { class: "swatch inline", "data-stage": stage.stage }), ` ${stage.stage}`);
    row.append(name, cell(duration(stage.ms), "number"), cell(percent(stage.share), "number"), cell(stage.source || "–"));
    return row;
  }));
  byId("detail-facts").replaceChildren(...detail.facts.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
  if (!byId("detail").open) byId("detail").showModal();
  await draw(detail.picture, "timeline");
}
