// Adds the next messages to the page: on request, while a search finds too few, and once a second in a live view. The server makes the
// HTML; this script fetches the address of the next page and moves its rows here. A busy server asks live views to come less often.
// Without scripts the links lead there. A page that nobody looks at fetches nothing.
"use strict";

const LIVE_MS = 1000;
const AGAIN_MS = 4000;
const ROWS_MAX = 1000;
const rows = document.getElementById("rows");
let timer = 0;
let busy = false;
let stopped = false;

function mode() {
  return document.getElementById("more").dataset.mode;
}

function put(id, next) {
  const fresh = next.getElementById(id);
  if (fresh) document.getElementById(id).replaceWith(document.adoptNode(fresh));
}

async function follow() {
  const link = document.querySelector("#more a[rel=next]");
  if (!link || busy) return;
  busy = true;
  let pause = LIVE_MS;
  try {
    const answer = await fetch(link.href, {
      headers: mode() === "live" ? { accept: "text/html", "headgate-poll": "1" } : { accept: "text/html" },
    });
    pause = Number(answer.headers.get("headgate-poll")) || pause;
    if (answer.status === 204) {
      document.getElementById("status").replaceChildren();
      return;
    }
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!next.getElementById("rows")) throw new Error((next.querySelector(".said") || next.body).textContent.trim() || answer.status);
    const fresh = [...next.getElementById("rows").children].map((one) => document.adoptNode(one));
    if (mode() === "live") {
      rows.prepend(...fresh.reverse());
      while (rows.children.length > ROWS_MAX) rows.lastElementChild.remove();
    } else rows.append(...fresh);
    // A page that was refused has no next one: the old link stays, and is followed again.
    if (answer.ok) put("more", next);
    else pause = AGAIN_MS;
    put("status", next);
  } catch (error) {
    pause = AGAIN_MS;
    const line = document.createElement("p");
    line.className = "banner bad";
    line.textContent = "No answer from the broker: " + error.message;
    document.getElementById("status").replaceChildren(line);
  } finally {
    busy = false;
    plan(pause);
  }
}

// Go on by itself in a live view, and in a search until a page is full.
let wanted = rows.children.length + 50;
function plan(pause) {
  clearTimeout(timer);
  const goes = mode() === "live" || (mode() === "search" && rows.children.length < wanted);
  const link = document.querySelector("#more a[rel=next]");
  const stop = document.getElementById("stop");
  if (stop) {
    stop.hidden = !goes || stopped;
    link.hidden = !stop.hidden;
    stop.onclick = () => {
      stopped = true;
      plan(0);
    };
  }
  if (goes && !stopped && link && !document.hidden) timer = setTimeout(follow, mode() === "live" ? pause : pause > LIVE_MS ? pause : 50);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("#more a[rel=next]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  stopped = false;
  wanted = rows.children.length + 50;
  follow();
});
document.addEventListener("visibilitychange", () => plan(0));
plan(LIVE_MS);
