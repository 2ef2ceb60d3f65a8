// Keeps the parts of a page that are marked `data-live` new, and shows live tails. Without it every page works
// but the tail. What comes from the server is escaped there.
"use strict";

const PERIOD_MS = 2000;
const TAIL_ROWS = 200;

function refreshed(own, fresh) {
  if (own.innerHTML === fresh.innerHTML) return;
  const at = document.activeElement;
  const link = own.contains(at) ? at.getAttribute("href") : null;
  const label = own.contains(at) ? at.getAttribute("aria-label") : null;
  const open = [...own.querySelectorAll("details")].map((one) => one.open);
  own.innerHTML = fresh.innerHTML;
  [...own.querySelectorAll("details")].forEach((one, place) => { one.open = Boolean(open[place]); });
  const next = [...own.querySelectorAll("a, [tabindex]")].find((one) =>
    (link !== null && one.getAttribute("href") === link) || (label !== null && one.getAttribute("aria-label") === label));
  if (next) next.focus({ preventScroll: true });
}

async function refresh() {
  const lost = document.getElementById("lost");
  try {
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(10000) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    lost.hidden = answer.ok && !answer.redirected;
    if (!answer.ok || answer.redirected) {
      const said = page.querySelector("main p:not([hidden])");
      lost.textContent = answer.redirected ? "You are logged out: load this page again." : `This page is old. ${said ? said.textContent : ""}`;
      return;
    }
    for (const own of document.querySelectorAll("[data-live]")) {
      const fresh = page.getElementById(own.id);
      if (fresh) refreshed(own, fresh);
    }
  } catch {
    lost.textContent = "The console does not answer; this page is old.";
    lost.hidden = false;
  }
}

function startRefresh() {
  const button = document.getElementById("pause");
  let paused = false;
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
  });
  const turn = async () => {
    if (!paused && !document.hidden) await refresh();
    setTimeout(turn, PERIOD_MS);
  };
  setTimeout(turn, PERIOD_MS);
}

// Why the console refuses a live tail: a stream of events does not tell.
async function refusal(address) {
  const ending = new AbortController();
  try {
    const answer = await fetch(address, { signal: ending.signal });
    if (answer.ok) return "";
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const said = page.querySelector("main p:not([hidden])");
    return said ? said.textContent : "";
  } catch {
    return "";
  } finally {
    ending.abort();
  }
}

function startTail(rows) {
  const state = document.getElementById("tail-state");
  const notice = document.getElementById("tail-notice");
  const count = document.getElementById("tail-count");
  const hold = document.getElementById("tail-hold");
  let seen = 0;
  let held = false;
  let lost = false;
  const events = new EventSource(rows.dataset.events);
  const say = (text) => { if (state.textContent !== text) state.textContent = text; };
  // It stays: records are missing from the table from now on.
  const note = (text) => {
    notice.textContent = `${new Date().toISOString().slice(11, 19)} UTC: ${text}`;
    notice.hidden = false;
  };
  hold.addEventListener("click", () => {
    held = !held;
    hold.setAttribute("aria-pressed", String(held));
  });
  events.addEventListener("state", (event) => say(JSON.parse(event.data).text));
  events.addEventListener("notice", (event) => note(JSON.parse(event.data).text));
  events.addEventListener("open", () => {
    if (lost) note("the console did not answer for a while; what came meanwhile is not shown");
    lost = false;
  });
  events.addEventListener("end", (event) => {
    say(`Ended: ${JSON.parse(event.data).text}`);
    events.close();
  });
  events.addEventListener("records", (event) => {
    const { text, skipped } = JSON.parse(event.data);
    const part = document.createElement("template");
    part.innerHTML = text;
    const fresh = [...part.content.querySelectorAll("tr")].reverse();
    seen += fresh.length + skipped;
    count.textContent = `${seen} records${skipped ? `; ${skipped} of the last came too fast to show` : ""}`;
    if (held) return;
    rows.prepend(...fresh);
    while (rows.rows.length > TAIL_ROWS) rows.lastElementChild.remove();
  });
  events.addEventListener("error", async () => {
    lost = true;
    if (events.readyState !== EventSource.CLOSED) {
      say("The console does not answer; trying again.");
      return;
    }
    say("The console refused the live tail: load this page again.");
    const why = await refusal(rows.dataset.events);
    if (why) say(`The console refused the live tail: ${why} Then load this page again.`);
  });
}

const rows = document.getElementById("tail");
if (rows) startTail(rows);
if (document.querySelector("[data-live]") && !rows) startRefresh();
