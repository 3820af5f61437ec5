// Where a reply comes from: what was read for it, the pages that it cites, the marks inside it.
(() => {
  const K = window.kvchat;

  K.pageName = (cite) => {
    const label = cite.label && cite.label !== String(cite.page);
    return K.say(label ? "ui.cite.printed" : "ui.cite", { page: cite.page, label: cite.label });
  };
  // Each page once, those that the reply matches first: in this order they are numbered.
  const distinct = (list) => {
    const found = new Map();
    for (const support of ["matched", "given"])
      for (const cite of list) {
        const key = `${cite.document}/${cite.page}`;
        if (cite.support === support && !found.has(key)) found.set(key, cite);
      }
    return [...found.values()];
  };
  // Before there is an answer nothing is confirmed or not: pages are only what came along.
  K.citations = (list, isAnswered) => {
    const matched = list.some((cite) => cite.support === "matched");
    const code = matched ? "ui.cites" : isAnswered ? "ui.cites.unconfirmed" : "ui.cites.brought";
    return K.el("div", { class: "kv-cites" },
      K.el("span", { class: "kv-muted", text: K.say(code) }),
      ...distinct(list).map((cite, at) => chip(cite, at + 1, isAnswered)));
  };
  // Why the model sees a cited document no more.
  K.unseenDocument = (document) => {
    if (K.documentNames && !K.documentNames[document]) return "ui.document.taken_out";
    return K.switchedOff?.has(document) ? "ui.document.switched_off" : null;
  };
  const chip = (cite, number, isAnswered) => {
    const matched = cite.support === "matched";
    const gone = K.unseenDocument(cite.document);
    const name = K.el("span", { class: "kv-cite-name", text: cite.name });
    const title = [cite.name, K.pageName(cite), K.say(matched ? "ui.cite.matched" : isAnswered ? "ui.cite.given" : "ui.passage.given"), gone ? K.say(gone) : "", cite.quote || cite.text].filter(Boolean).join("\n");
    return K.el("button", { type: "button", class: `kv-cite${matched ? " kv-matched" : ""}${gone ? " kv-gone" : ""}`, title, on: { click: () => K.openPage(cite.document, cite.page, cite) } },
      matched ? K.el("span", { class: "kv-cite-number", "aria-hidden": "true", text: String(number) }) : null,
      name, K.el("span", { text: K.pageName(cite) }), gone ? K.el("i", { class: "kv-only-heard", text: K.say(gone) }) : null, matched ? K.icon("check") : null);
  };
  K.citesOf = (document, page) => {
    const all = K.notes.turns.flatMap((note) => note.citations ?? []);
    const here = all.filter((cite) => cite.document === document && (page === undefined || cite.page === page));
    return distinct(here).concat(here.filter((cite) => cite.support === "matched"));
  };

  // How each document was read for a reply, in a line under it.
  K.sources = (note) => {
    const said = new Set((note.sources ?? []).map((one) => one.document));
    const rows = (note.sources ?? []).map(sourceLine).filter(Boolean);
    for (const cite of distinct(note.citations ?? []))
      if (!said.has(cite.document)) {
        said.add(cite.document);
        rows.push(K.say("ui.source.whole", { name: cite.name }));
      }
    return rows.length ? K.el("div", { class: "kv-sources kv-muted" }, ...rows.map((text) => K.el("span", { text }))) : null;
  };
  const sourceLine = (one) => {
    const line = broughtLine(one);
    return one.so_far ? [line, K.say("ui.source.so_far", one.so_far)].filter(Boolean).join(" · ") : line;
  };
  const broughtLine = (one) => {
    if (one.mode === "whole") return K.say("ui.source.whole", { name: one.name });
    if (one.mode === "summary") return K.say("ui.source.summary", { name: one.name, pages: one.pages });
    if (one.pages.length) return K.say(one.pages.length === 1 ? "ui.source.page" : "ui.source.pages", { name: one.name, pages: one.pages });
    if (one.no_room) return K.say("ui.source.no_room", { name: one.name });
    return one.asked ? K.say("ui.source.nothing", { name: one.name }) : "";
  };

  // A long document is summed up part by part before the reply begins.
  K.summingProgress = ({ done = 0, of = 1, left_s: left }) => {
    const words = K.say("ui.summing", { part: Math.min(done + 1, of), parts: of });
    return left ? `${words} · ${K.say("ui.summing.left", { s: Math.max(1, Math.round(left)) })}` : words;
  };

  // A mark inside a reply opens the page that its sentence is confirmed by.
  document.addEventListener("click", (event) => {
    const mark = event.target.closest?.(".kv-ref");
    if (!mark) return;
    const foot = mark.closest(".kv-reply")?.parentElement?.querySelector(".kv-foot");
    const turn = Number(foot?.id.split("-").at(-1));
    const note = K.notes.turns.find((one) => one.turn === turn);
    const cite = distinct(note?.citations ?? [])[Number(mark.querySelector("b").textContent) - 1];
    if (cite) K.openPage(cite.document, cite.page, cite);
  });
})();
