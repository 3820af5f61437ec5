// One page of a document as its picture, with the passage marked that led there.
(() => {
  const K = window.kvchat;
  const ZOOMS = [1, 1.5, 2, 3];
  let shown = null; // {document, page, cite}
  let documents = [];
  let view = null;
  let zoom = 0; // a place in ZOOMS

  K.shownPage = () => shown;
  // `cite`: the citation that led here; without one, the best of the page.
  K.openPage = (document, page, cite = null) => {
    shown = { document, page, cite: cite ?? K.citesOf(document, page)[0] ?? null };
    K.panel.open("documents");
    K.emit("page", shown);
    K.drawPage();
    view.scrollIntoView({ block: "start" });
    view.focus({ preventScroll: true });
  };
  K.pageView = () => {
    view = K.el("section", { class: "kv-page-view", hidden: true, tabindex: "-1", "aria-label": K.say("ui.page.view") });
    view.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !shown) return;
      const act = { ArrowLeft: () => go(-1), PageUp: () => go(-1), ArrowRight: () => go(1), PageDown: () => go(1), "+": () => zoomed(1), "=": () => zoomed(1), "-": () => zoomed(-1), Escape: close, Home: () => to(1), End: () => to(last()) }[event.key];
      if (!act) return;
      event.preventDefault();
      event.stopPropagation();
      act();
    });
    return view;
  };
  const one = () => documents.find((row) => row.document === shown.document);
  const last = () => one()?.num_pages ?? shown.page;
  const to = (page) => K.openPage(shown.document, Math.min(last(), Math.max(1, page)));
  const go = (step) => to(shown.page + step);
  const zoomed = (step) => {
    zoom = Math.min(ZOOMS.length - 1, Math.max(0, zoom + step));
    view.kvKey = "";
    K.drawPage();
  };
  const close = () => {
    shown = null;
    K.emit("page", null);
    K.drawPage();
  };

  K.drawPage = () => {
    if (!view) return;
    K.show(view, Boolean(shown));
    if (!shown) return;
    const row = one();
    const { cite } = shown;
    const pinned = Boolean(row?.pinned || row?.pinned_pages?.includes(shown.page));
    const left = Boolean(row?.left_pages?.includes(shown.page));
    const key = [shown.document, shown.page, last(), cite?.text, cite?.quote, cite?.support, pinned, row?.pinned, left, zoom].join("|");
    if (view.kvKey === key) return;
    view.kvKey = key;
    const focused = view.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    const facts = { page: shown.page, of: last(), label: K.pageFacts?.(shown.document, shown.page)?.label ?? cite?.label };
    const isPrinted = facts.label && facts.label !== String(shown.page);
    const name = K.say(isPrinted ? "ui.page.of.printed" : "ui.page.of", facts);
    const about = { alt: `${row?.name ?? cite?.name ?? ""} ${name}`, src: `/doc/${encodeURIComponent(shown.document)}/${shown.page}.png` };
    const bar = K.el("div", { class: "kv-page-bar" },
      K.button("ui.page.before", "left", () => go(-1), { class: "kv-tool", disabled: shown.page <= 1 }),
      K.el("span", { class: "kv-page-name", text: name, "aria-live": "polite" }),
      K.button("ui.page.after", "right", () => go(1), { class: "kv-tool", disabled: shown.page >= last() }),
      K.button("ui.page.smaller", "minus", () => zoomed(-1), { class: "kv-tool", disabled: zoom === 0 }),
      K.button("ui.page.larger", "plus", () => zoomed(1), { class: "kv-tool", disabled: zoom === ZOOMS.length - 1 }),
      row ? K.el("button", { type: "button", class: "kv-link kv-leave", "aria-pressed": String(left), text: K.say(left ? "ui.page.include" : "ui.page.exclude"), title: K.say(left ? "ui.page.include.hint" : "ui.page.exclude.hint"), on: { click: () => K.leavePage(row, shown.page, !left) } }) : null,
      row ? K.button(pinned ? "ui.page.unpin" : "ui.page.pin", pinned ? "pinned" : "pin", () => K.pinDocument(row, shown.page, !pinned), { class: "kv-tool", disabled: Boolean(row.pinned) || left, "aria-pressed": String(pinned) }) : null);
    const said = K.el("p", { class: "kv-hint", hidden: !(left || !row), text: row ? K.say("ui.page.is_left") : K.say("ui.document.taken_out") });
    view.replaceChildren(...[bar, said, passage(cite), ...picture(about)].filter(Boolean));
    if (focused) view.querySelector(`[aria-label="${CSS.escape(focused)}"]:not([disabled])`)?.focus();
  };
  const passage = (cite) => {
    const text = cite?.quote || cite?.text;
    return text ? K.el("figure", { class: "kv-passage" }, K.el("figcaption", { class: "kv-muted", text: K.say(cite.support === "matched" ? "ui.passage" : "ui.passage.given") }), K.el("blockquote", { text })) : null;
  };
  const picture = (about) => {
    const failed = K.el("p", { class: "kv-hint", text: K.say("ui.page.failed"), hidden: true });
    const image = K.el("img", { class: "kv-page", ...about, on: { error: () => { frame.hidden = true; failed.hidden = false; } } });
    const sheet = K.el("button", { type: "button", class: "kv-enlarge", title: K.say("ui.page.enlarge"), "aria-label": K.say("ui.page.enlarge"), on: { click: () => full(about) } }, image);
    sheet.style.width = `${ZOOMS[zoom] * 100}%`;
    const frame = K.el("div", { class: "kv-sheet" }, sheet);
    mark(sheet, { ...shown });
    return [failed, frame];
  };
  // The boxes of the passage over the picture: in parts of its width and height.
  const mark = async (sheet, { document, page, cite }) => {
    for (const box of await boxes(document, page, cite)) {
      const spot = K.el("i", { class: `kv-spot${cite.support === "matched" ? " kv-matched" : ""}` });
      const [left, top, right, bottom] = box.map((part) => part * 100);
      spot.style.cssText = `left:${left}%;top:${top}%;width:${right - left}%;height:${bottom - top}%`;
      sheet.append(spot);
    }
  };
  const known = new Map();
  const boxes = async (document, page, cite) => {
    if (!cite || cite.page !== page || cite.document !== document) return [];
    const texts = [cite.quote, cite.text].filter(Boolean);
    const key = [document, page, ...texts].join("|");
    if (!known.has(key)) {
      if (known.size > 64) known.clear();
      const query = new URLSearchParams(texts.map((text) => ["q", text.slice(0, 2500)]));
      known.set(key, fetch(`/doc/${encodeURIComponent(document)}/${page}.json?${query}`).then((found) => (found.ok ? found.json() : {}), () => ({})));
    }
    const { marks = [] } = await known.get(key);
    return marks.find((found) => found.length) ?? [];
  };
  // The page over the whole window, as large as its picture is; a click or Esc puts it away.
  const full = (about) => {
    const sheet = K.el("div", { class: "kv-full-sheet" }, K.el("img", about));
    const dialog = K.el("dialog", { class: "kv-dialog kv-full", "aria-label": about.alt }, sheet);
    mark(sheet, { ...shown });
    dialog.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  };
  K.on("documents", (list) => {
    documents = list;
    K.drawPage();
  });
  K.on("chat", () => {
    shown = null;
    if (view) view.kvKey = "";
    K.drawPage();
  });
})();
