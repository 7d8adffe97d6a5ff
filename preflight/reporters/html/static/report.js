"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const tools = document.getElementById("tools");
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  tools.hidden = false;
  tools.addEventListener("submit", (event) => event.preventDefault());

  // Names in short form (node[01-16],db) one by one, so that a search for node07 finds whatever speaks of it.
  const MOST_NAMES = 100000;
  const expanded = (text) => {
    const names = [];
    for (const word of text.match(/[^,\s[\]]*(?:\[[^\]]*\][^,\s[\]]*)*/g) || []) {
      if (!word) continue;
      let made = [""];
      for (const part of word.split(/(\[[^\]]*\])/)) {
        if (!/^\[[-\d,]+\]$/.test(part)) { made = made.map((name) => name + part); continue; }
        const numbers = [];
        for (const range of part.slice(1, -1).split(",")) {
          const [first, last = first] = range.split("-");
          for (let n = Number(first); n <= Number(last) && numbers.length < MOST_NAMES; n++) numbers.push(String(n).padStart(first.length, "0"));
        }
        if (made.length * numbers.length > MOST_NAMES) return names;
        made = made.flatMap((name) => numbers.map((number) => name + number));
      }
      for (const name of made) names.push(name);
    }
    return names;
  };
  const texts = new Map();
  const textOf = (item) => {
    if (!texts.has(item)) {
      const names = item.dataset.names ? " " + expanded(item.dataset.names).join(" ") : "";
      texts.set(item, (item.textContent + names).toLowerCase());
    }
    return texts.get(item);
  };

  const items = all("[data-find]");
  const opened = new Set();
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const severities = new Set(all("input[name=severity]", tools).filter((box) => box.checked).map((box) => box.value));
    let shown = 0, findings = 0, of = 0;
    for (const item of items) {
      const severity = item.dataset.severity;
      const text = words.length ? textOf(item) : "";
      const fits = words.every((word) => text.includes(word)) && (!severity || severities.has(severity));
      item.hidden = !fits;
      if (fits) shown++;
      if (severity && item.closest("#findings")) { of++; if (fits) findings++; }
      const details = words.length && fits ? item.closest("details") : null;
      if (details && !details.open) { details.open = true; opened.add(details); }
    }
    if (!words.length) { for (const details of opened) details.open = false; opened.clear(); }
    document.getElementById("no-findings").hidden = of === 0 || findings > 0;
    // What is shown is the answer to this.
    tools.dataset.answered = search.value;
    const filtered = words.length || severities.size < all("input[name=severity]", tools).length;
    found.textContent = filtered ? `${findings} of ${of} findings` + (words.length ? `, ${shown - findings} other matches` : "") : "";
  };
  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 80); });
  tools.addEventListener("change", filter);
  document.addEventListener("keydown", (event) => {
    const typing = /^(input|textarea|select)$/i.test(event.target.tagName || "");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); search.focus(); search.select(); }
    if (event.key === "Escape" && event.target === search && search.value) { search.value = ""; filter(); }
  });

  // A link to something that the filter hides, or that lies folded, shows it.
  const reveal = () => {
    // Anchors are plain words, so nothing has to be decoded.
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (!target) return;
    if (target.hidden) { search.value = ""; for (const box of all("input[name=severity]", tools)) box.checked = true; filter(); target.scrollIntoView(); }
    const details = target.closest("details");
    if (details && !details.open) { details.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", reveal);
  reveal();

  // Copying.
  const said = document.createElement("p");
  said.className = "hidden"; said.setAttribute("role", "status");
  document.querySelector("main").append(said);
  const copied = async (text) => {
    try { await navigator.clipboard.writeText(text); return true; } catch (error) { /* the older way, below */ }
    const area = document.createElement("textarea");
    area.value = text; area.className = "hidden"; document.body.append(area); area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  for (const code of all("[data-copy]")) {
    const button = document.createElement("button");
    button.type = "button"; button.className = "copy"; button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy: ${code.textContent.slice(0, 120)}`);
    button.addEventListener("click", async () => {
      const done = await copied(code.textContent);
      button.focus();
      button.textContent = done ? "Copied" : "Failed";
      said.textContent = done ? "Copied to the clipboard" : "Could not be copied";
      setTimeout(() => { button.textContent = "Copy"; said.textContent = ""; }, 1600);
    });
    code.after(button);
  }

  // What lies under the pointer in a picture of pairs: who, and which entry of the legend has its colour.
  const legendOf = (part) => new Map(all(".legend li", part).map((entry) => [
    getComputedStyle(entry.querySelector(".swatch")).backgroundColor, entry.textContent.trim().replace(/^[✓×?·]/, "")]));
  const spoken = (names) => names.length > 2 ? `${names[0]} to ${names[names.length - 1]}` : names.join(", ");
  for (const heat of all("[data-rows]")) {
    const [raster, image] = [heat.querySelector(".raster"), heat.querySelector("img")];
    const [rows, columns] = [expanded(heat.dataset.rows), expanded(heat.dataset.columns)];
    const size = Math.ceil(Math.max(rows.length, columns.length) / Math.max(image.naturalWidth, image.naturalHeight, 1));
    const tip = document.createElement("div");
    tip.className = "tip"; tip.hidden = true; tip.setAttribute("aria-hidden", "true");
    raster.append(tip);
    let pixels = null;
    const read = () => {
      const canvas = document.createElement("canvas");
      canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
      const context = canvas.getContext("2d");
      context.drawImage(image, 0, 0);
      return context.getImageData(0, 0, canvas.width, canvas.height);
    };
    image.addEventListener("load", () => { pixels = null; });
    raster.addEventListener("pointermove", (event) => {
      const box = image.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left) / box.width * image.naturalWidth);
      const row = Math.floor((event.clientY - box.top) / box.height * image.naturalHeight);
      if (column < 0 || row < 0 || column >= image.naturalWidth || row >= image.naturalHeight) { tip.hidden = true; return; }
      pixels = pixels || read();
      const at = 4 * (row * pixels.width + column);
      const [red, green, blue, opaque] = pixels.data.slice(at, at + 4);
      const what = opaque ? legendOf(heat.parentElement).get(`rgb(${red}, ${green}, ${blue})`) : "not tried";
      const part = (names, number) => spoken(names.slice(number * size, (number + 1) * size));
      tip.textContent = `${part(rows, row)} → ${part(columns, column)}${what ? ": " + what : ""}`;
      tip.hidden = false;
      const left = event.clientX - box.left, beyond = left + tip.offsetWidth + 16 > box.width;
      tip.style.left = `${beyond ? Math.max(0, left - tip.offsetWidth - 12) : left + 14}px`;
      tip.style.top = `${event.clientY - box.top + 16}px`;
    });
    raster.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  // Sorting: by number where there is one, else by text in natural order.
  const natural = new Intl.Collator("en", { numeric: true }).compare;
  for (const table of all("table[data-sortable]")) {
    const body = table.tBodies[0];
    if (!body || body.rows.length < 3) continue;
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button"; button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = (row) => { const cell = row.cells[column]; return cell.dataset.sort === undefined ? null : Number(cell.dataset.sort); };
        const compare = (a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x !== null && y !== null) return x - y;
          if (x !== null || y !== null) return x === null ? 1 : -1;
          return natural(a.cells[column].textContent, b.cells[column].textContent);
        };
        const rows = [...body.rows].sort(compare);
        body.append(...(up ? rows : rows.reverse()));
      });
    });
  }
})();
