// Keeps the page up to date: the server sends the HTML of the parts that changed, and this script adjusts the elements in place, so
// that scroll positions, open details, the focus and selected text survive. Without scripts the page is complete, but stands still.
"use strict";

const live = document.getElementById("live");
const SILENCE_MS = 12000;
let source = null;
let heard = 0;

function show(state, text) {
  live.dataset.state = state;
  live.querySelector("span").textContent = text;
}

function sameKind(now, next) {
  return now.nodeType === next.nodeType && now.nodeName === next.nodeName && (now.id || "") === (next.id || "");
}

// Make `now` equal to `next`, with as few changes as an element-by-element comparison finds.
function adjust(now, next) {
  if (now.nodeType !== Node.ELEMENT_NODE) {
    if (now.nodeValue !== next.nodeValue) now.nodeValue = next.nodeValue;
    return;
  }
  for (const { name, value } of [...next.attributes]) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  for (const { name } of [...now.attributes]) {
    if (!next.hasAttribute(name) && name !== "open" && !(name === "class" && now.classList.contains("aim"))) now.removeAttribute(name);
  }
  adjustChildren(now, next);
}

function adjustChildren(now, next) {
  const wanted = [...next.childNodes];
  for (const [at, child] of wanted.entries()) {
    let found = now.childNodes[at];
    if (child.id) {
      // An element that only moved, such as a broker's card behind one that left, is kept.
      const kept = [...now.childNodes].slice(at).find((one) => one.id === child.id);
      if (kept && kept !== found) now.insertBefore(kept, found);
      found = now.childNodes[at];
    }
    if (!found) now.appendChild(child.cloneNode(true));
    else if (sameKind(found, child)) adjust(found, child);
    else now.insertBefore(child.cloneNode(true), found);
  }
  while (now.childNodes.length > wanted.length) now.lastChild.remove();
}

function aim() {
  const id = decodeURIComponent(location.hash.slice(1));
  const found = id && document.getElementById(id);
  document.querySelectorAll(".aim").forEach((one) => one !== found && one.classList.remove("aim"));
  if (!found || found.classList.contains("aim")) return;
  found.closest("details")?.setAttribute("open", "");
  found.classList.add("aim");
  found.scrollIntoView({ block: "center" });
}

function listen() {
  if (source) source.close();
  source = new EventSource("/api/events" + location.search);
  source.addEventListener("part", (event) => {
    heard = Date.now();
    show("live", "live");
    const { id, html } = JSON.parse(event.data);
    const part = document.getElementById(id);
    const template = document.createElement("template");
    template.innerHTML = html;
    const selection = document.getSelection();
    const reading = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
    if (!reading) adjustChildren(part, template.content);
    if (id === "floods") aim();
  });
  source.addEventListener("beat", () => {
    heard = Date.now();
    show("live", "live");
  });
  source.addEventListener("error", () => {
    show("lost", "connecting");
    // After an answer other than 200, such as too many open pages, the browser itself does not try again.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  });
}

function go(address) {
  history.pushState(null, "", address);
  listen();
}

for (const form of document.querySelectorAll("form.search")) {
  const search = () => {
    const fields = new FormData(form);
    const query = new URLSearchParams(location.search);
    const own = form.querySelector("input[type=search]").name;
    query.set(own, fields.get(own));
    query.delete(own === "search" ? "page" : "group_page");
    go("?" + query);
  };
  let timer = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, 250);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    search();
  });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='?']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
addEventListener("popstate", () => {
  const query = new URLSearchParams(location.search);
  for (const field of document.querySelectorAll("form.search input[type=search]")) field.value = query.get(field.name) || "";
  listen();
});
addEventListener("hashchange", aim);
setInterval(() => {
  if (heard && Date.now() - heard > SILENCE_MS) show("lost", "no answer");
}, 2000);
// A page that nobody looks at costs the broker nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    if (source) source.close();
    heard = 0;
    show("still", "paused");
  } else listen();
});
listen();
aim();
