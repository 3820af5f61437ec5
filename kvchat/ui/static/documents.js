// The documents of a chat, their pages as pictures, and the citations that lead there.
(() => {
  const K = window.kvchat;
  let documents = [];
  let shown = null; // {document, page}
  let parts;

  const wholeName = (cite) => {
    const label = cite.label && cite.label !== String(cite.page);
    return K.say(label ? "ui.cite.printed" : "ui.cite", { page: cite.page, label: cite.label });
  };
  K.citations = (list) => {
    const seen = new Set();
    const chips = [];
    for (const support of ["matched", "given"]) {
      for (const cite of list) {
        const key = `${cite.document}/${cite.page}`;
        if (cite.support !== support || seen.has(key)) continue;
        seen.add(key);
        chips.push(chip(cite));
      }
    }
    const matched = list.some((cite) => cite.support === "matched");
    return K.el("div", { class: "kv-cites" },
      K.el("span", { class: "kv-muted", text: K.say(matched ? "ui.cites" : "ui.cites.unconfirmed") }), ...chips);
  };
  const chip = (cite) => {
    const matched = cite.support === "matched";
    const name = K.el("span", { class: "kv-cite-name", text: cite.name });
    const title = [cite.name, wholeName(cite), K.say(matched ? "ui.cite.matched" : "ui.cite.given"), cite.text].filter(Boolean).join("\n");
    return K.el("button", { type: "button", class: `kv-cite${matched ? " kv-matched" : ""}`, title, on: { click: () => K.openPage(cite.document, cite.page, cite) } },
      name, K.el("span", { text: wholeName(cite) }), matched ? K.icon("check") : null);
  };
  // `cite`: the citation that led here; without one, the best of the page.
  K.openPage = (document, page, cite = null) => {
    shown = { document, page, cite: cite ?? citesOf(document, page)[0] ?? null };
    K.panel.open("documents");
    draw();
    parts.view.scrollIntoView({ block: "start" });
  };

  const citesOf = (document, page) => {
    const all = K.notes.turns.flatMap((note) => note.citations ?? []);
    const here = all.filter((cite) => cite.document === document && (page === undefined || cite.page === page));
    return [...here.filter((cite) => cite.support === "matched"), ...here.filter((cite) => cite.support !== "matched")];
  };

  K.panel.tab("documents", 10, (body) => {
    parts = { list: K.el("div", { class: "kv-docs" }), view: K.el("div", { class: "kv-page-view", hidden: true }) };
    body.append(parts.list, parts.view);
    draw();
  });
  const draw = () => {
    if (!parts) return;
    if (shown && documents.length && !documents.some((one) => one.document === shown.document)) shown = null;
    const sorted = [...documents.filter((one) => !one.problem), ...documents.filter((one) => one.problem)];
    parts.list.replaceChildren(...(sorted.length ? sorted.map(row) : [K.el("p", { class: "kv-hint", text: K.say("ui.documents.none") }), K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.attach"), on: { click: K.chooseFiles } })]));
    drawPage();
  };
  const about = (one) => {
    const found = [K.say("ui.pages", { pages: one.num_pages })];
    if (one.pages_done < one.num_pages && !one.problem) found.push(K.say("ui.reading", { done: one.pages_done, of: one.num_pages }));
    if (one.num_tokens) found.push(K.say("ui.figures.tokens", { tokens: one.num_tokens }));
    return found.join(" · ");
  };
  const row = (one) => {
    const item = K.el("section", { class: `kv-doc${one.problem ? " kv-has-problem" : ""}` },
      K.el("div", { class: "kv-doc-head" }, K.icon("file"),
        K.el("div", { class: "kv-doc-words" },
          K.el("strong", { text: one.name, title: one.name }),
          one.problem ? K.el("span", { class: "kv-unread", text: K.say("ui.broken") }) : K.el("span", { class: "kv-muted", text: about(one) }),
          one.mode && !one.problem ? K.el("span", { class: "kv-muted", text: K.say(`ui.mode.${one.mode}`) }) : null),
        one.problem ? null : K.button(one.pinned ? "ui.document.unpin" : "ui.document.pin", one.pinned ? "pinned" : "pin", () => pin(one, null, !one.pinned), { class: "kv-tool", "aria-pressed": String(Boolean(one.pinned)) }),
        K.button("ui.document.remove", "close", async () => {
          await K.call("remove_document", { chat: K.chat, document: one.document });
          K.refreshDocuments();
        }, { class: "kv-tool" })));
    if (one.problem) item.append(K.el("p", { class: "kv-doc-problem", text: `${one.problem.message} ${one.problem.remedy}` }));
    if (refused?.document === one.document) item.append(K.el("p", { class: "kv-doc-problem", role: "alert", text: refused.text }));
    for (const note of one.notes ?? []) item.append(K.el("p", { class: "kv-doc-note", text: note }));
    if (!one.problem && one.pages_done < one.num_pages) item.append(progress(one));
    if (!one.problem && one.num_pages) item.append(pages(one));
    return item;
  };
  // Of a document, or one page of it; what is refused is said at its row.
  let refused = null; // {document, text}
  const pin = async (one, page, pinned) => {
    const found = await K.call("pin", { chat: K.chat, document: one.document, page, pinned });
    refused = found.error ? { document: one.document, text: `${found.error.message} ${found.error.remedy}` } : null;
    if (refused) draw();
    else K.refreshDocuments();
  };
  const progress = (one) => {
    const fill = K.el("i");
    fill.style.width = `${((one.pages_done / one.num_pages) * 100).toFixed(1)}%`;
    return K.el("span", { class: "kv-progress" }, fill);
  };
  // Chips for the pages that replies cite, those first that a reply matches, then the first few; the
  // rest through the arrows of the view.
  const pages = (one) => {
    const cited = new Set(citesOf(one.document).map((cite) => cite.page));
    const here = shown?.document === one.document ? shown.page : null;
    const wanted = new Set([...cited, here, ...(one.pinned_pages ?? []), ...Array.from({ length: Math.min(5, one.num_pages) }, (_, n) => n + 1)]);
    const list = [...wanted].filter((page) => page && page <= one.num_pages).slice(0, 40);
    return K.el("div", { class: "kv-page-chips" }, ...list.map((page) =>
      K.el("button", { type: "button", class: `kv-page-chip${page === here ? " kv-here" : ""}${one.pinned_pages?.includes(page) ? " kv-pinned" : ""}${cited.has(page) ? " kv-cited" : ""}`, "aria-pressed": String(page === here), text: K.say("ui.page", { page }), on: { click: () => K.openPage(one.document, page) } })));
  };
  const drawPage = () => {
    K.show(parts.view, Boolean(shown));
    if (!shown) return;
    const one = documents.find((row) => row.document === shown.document);
    const last = one?.num_pages ?? shown.page;
    const go = (step) => K.openPage(shown.document, Math.min(last, Math.max(1, shown.page + step)));
    const name = K.say("ui.page.of", { page: shown.page, of: last });
    const cite = shown.cite;
    const pinned = Boolean(one?.pinned || one?.pinned_pages?.includes(shown.page));
    const key = `${shown.document}/${shown.page}/${last}/${cite?.text ?? ""}/${cite?.support ?? ""}/${pinned}/${one?.pinned}`;
    if (parts.view.kvKey === key) return;
    parts.view.kvKey = key;
    const failed = K.el("p", { class: "kv-hint", text: K.say("ui.page.failed"), hidden: true });
    const about = { alt: `${one?.name ?? ""} ${name}`, src: `/doc/${encodeURIComponent(shown.document)}/${shown.page}.png` };
    const picture = K.el("img", { class: "kv-page", ...about, on: { error: () => { enlarge.hidden = true; failed.hidden = false; } } });
    const enlarge = K.el("button", { type: "button", class: "kv-enlarge", title: K.say("ui.page.enlarge"), "aria-label": K.say("ui.page.enlarge"), on: { click: () => full(about) } }, picture);
    const passage = cite?.text ? K.el("figure", { class: "kv-passage" }, K.el("figcaption", { class: "kv-muted", text: K.say(cite.support === "matched" ? "ui.passage" : "ui.passage.given") }), K.el("blockquote", { text: cite.text })) : null;
    parts.view.replaceChildren(
      K.el("div", { class: "kv-page-bar" },
        K.button("ui.page.before", "left", () => go(-1), { class: "kv-tool", disabled: shown.page <= 1 }),
        K.el("span", { text: name }),
        K.button("ui.page.after", "right", () => go(1), { class: "kv-tool", disabled: shown.page >= last }),
        one ? K.button(pinned ? "ui.page.unpin" : "ui.page.pin", pinned ? "pinned" : "pin", () => pin(one, shown.page, !pinned), { class: "kv-tool", disabled: Boolean(one.pinned), "aria-pressed": String(pinned) }) : null),
      ...[passage, failed, enlarge].filter(Boolean));
  };
  // The page over the whole window, as large as its picture is; a click or Esc puts it away.
  const full = (about) => {
    const dialog = K.el("dialog", { class: "kv-dialog kv-full", "aria-label": about.alt }, K.el("img", about));
    dialog.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  };
  K.on("documents", (list) => {
    const grew = list.length > documents.length;
    documents = list;
    if (grew && matchMedia("(min-width: 1100px)").matches && !K.panel.isOpen()) K.panel.open("documents");
    draw();
  });
  K.on("chat", () => {
    refused = null;
    shown = null;
    if (parts) parts.view.kvKey = "";
  });
  K.on("notes", draw);
})();
