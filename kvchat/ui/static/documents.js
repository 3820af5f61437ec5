// The documents of a chat: a card each, how it is read and at what cost, and its pages.
(() => {
  const K = window.kvchat;
  const CHOICES = [
    [null, "ui.read.auto"],
    ["whole", "ui.read.whole"],
    ["passages", "ui.read.passages"],
    ["off", "ui.read.off"],
  ];
  const MODES = { whole: "ui.mode.whole", passages: "ui.mode.passages", off: "ui.mode.off" };
  const REASONS = { fits: "ui.read.fits", too_large: "ui.read.too_large", left_out: "ui.read.left_out", setting: "ui.read.setting", pinned: "ui.read.pinned" };
  const VERDICTS = { text: "ui.page.text", form: "ui.page.form", hidden: "ui.page.hidden", ocr: "ui.page.ocr", scan: "ui.page.scan", unreadable: "ui.page.unreadable", empty: "ui.page.empty" };
  const UNREAD = ["scan", "unreadable", "empty"];
  const AHEAD = { waiting: "ui.ahead.waiting", reading: "ui.ahead.reading", no_room: "ui.ahead.no_room", done: "ui.ahead.done" };
  const FEW = 48;
  let documents = [];
  let plans = new Map(); // document -> how the next question reads it
  const pages = new Map(); // document -> {key, rows}
  const all = new Set(); // documents whose pages are all shown
  let parts;
  let refused = null; // {document, text}: what is refused is said at its card
  let renaming = null;

  K.pageFacts = (document, page) => pages.get(document)?.rows.find((row) => row.number === page);

  K.panel.tab("documents", 10, (body) => {
    parts = { list: K.el("div", { class: "kv-docs" }), view: K.pageView() };
    body.append(parts.list, parts.view);
    draw();
  });
  let drawn = "";
  const draw = () => {
    if (!parts) return;
    const cites = K.notes.turns.flatMap((note) => (note.citations ?? []).map((cite) => `${cite.document}/${cite.page}/${cite.support}`));
    const read = [...pages].map(([document, one]) => [document, one.key]);
    const key = JSON.stringify([documents, [...plans], refused, renaming, K.shownPage(), cites, read, [...all]]);
    if (key === drawn) return; // notes come eight times a second while an answer grows
    drawn = key;
    const typed = keptTyping();
    const place = (one) => (one.asks_password ? 0 : one.problem ? 2 : 1); // what waits for somebody first
    const sorted = [...documents].sort((a, b) => place(a) - place(b));
    const none = () => [K.el("p", { class: "kv-hint", text: K.say("ui.documents.none") }), K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.attach"), on: { click: K.chooseFiles } })];
    parts.list.replaceChildren(...(sorted.length ? sorted.map(card) : none()));
    typed();
    K.drawPage();
  };
  // What is being typed, and where the keyboard is, outlives a card that is drawn anew.
  const keptTyping = () => {
    const at = parts.list.contains(document.activeElement) ? document.activeElement : null;
    const name = at?.dataset.kvKeep;
    const values = [...parts.list.querySelectorAll("input[data-kv-keep]")].map((one) => [one.dataset.kvKeep, one.value]);
    return () => {
      for (const one of parts.list.querySelectorAll("[data-kv-keep]")) {
        const value = values.find(([kept]) => kept === one.dataset.kvKeep);
        if (value && one.matches("input:not([type=radio])")) one.value = value[1];
        if (name && one.dataset.kvKeep === name) one.focus();
      }
    };
  };

  const card = (one) => {
    const item = K.el("section", { class: `kv-doc${one.problem ? " kv-has-problem" : ""}${one.asks_password ? " kv-locked" : ""}${one.chosen === "off" ? " kv-doc-off" : ""}`, "aria-label": one.name },
      K.el("div", { class: "kv-doc-head" }, K.icon("file"), K.el("div", { class: "kv-doc-words" }, ...words(one)), ...tools(one)));
    if (one.asks_password) item.append(password(one));
    else if (one.problem) item.append(K.el("p", { class: "kv-doc-problem", text: `${one.problem.message} ${one.problem.remedy}` }));
    if (refused?.document === one.document) item.append(K.el("p", { class: "kv-doc-problem", role: "alert", text: refused.text }));
    for (const note of one.notes ?? []) item.append(K.el("p", { class: "kv-doc-note", text: note }));
    if (one.problem) return item;
    if (!one.is_complete || one.pages_done < one.num_pages) item.append(progress(one.pages_done, one.num_pages, K.readingSaid(one)));
    if (one.num_to_recognise && !one.is_complete) item.append(progress(one.num_recognised, one.num_to_recognise, K.say("ui.recognising", { done: one.num_recognised, of: one.num_to_recognise })));
    if (!one.is_complete) item.append(K.el("p", { class: "kv-doc-note", text: K.say(one.answers_early ? "ui.reading.early" : "ui.reading.whole") }));
    const plan = plans.get(one.document);
    if (plan) item.append(...reading(one, plan));
    if (one.num_pages) item.append(chips(one));
    return item;
  };
  const words = (one) => {
    if (renaming === one.document) return [renameForm(one)];
    const about = one.num_pages ? [K.say("ui.pages", { pages: one.num_pages })] : [K.readingSaid(one)];
    const plan = plans.get(one.document);
    if (one.num_tokens) about.push(K.say("ui.figures.tokens", { tokens: one.num_tokens }));
    if (one.num_tokens && plan) about.push(K.size(plan.tokens === one.num_tokens ? plan.bytes : Math.round(one.num_tokens * plan.bytes_per_token)));
    const mode = plan?.mode ?? one.mode; // as the next question reads it: what was just chosen counts
    return [
      K.el("strong", { text: one.name, title: one.name }),
      one.problem ? K.el("span", { class: "kv-unread", text: K.say(one.asks_password ? "ui.locked" : "ui.broken") }) : K.el("span", { class: "kv-muted", text: about.join(" · "), title: one.num_tokens ? K.say("ui.document.tokens.help") : null }),
      mode && !one.problem ? K.el("span", { class: "kv-doc-mode", text: K.say(MODES[mode]) }) : null,
    ].filter(Boolean);
  };
  const tools = (one) => [
    one.problem ? null : K.button(one.pinned ? "ui.document.unpin" : "ui.document.pin", one.pinned ? "pinned" : "pin", () => K.pinDocument(one, null, !one.pinned), { class: "kv-tool", "aria-pressed": String(Boolean(one.pinned)) }),
    one.problem ? null : K.button("ui.document.rename", "pencil", () => { renaming = one.document; draw(); parts.list.querySelector(".kv-doc-rename input")?.select(); }, { class: "kv-tool" }),
    K.button("ui.document.remove", "close", async () => {
      await K.call("remove_document", { chat: K.chat, document: one.document });
      K.refreshDocuments();
    }, { class: "kv-tool" }),
  ].filter(Boolean);
  const renameForm = (one) => {
    const input = K.el("input", { class: "kv-input", value: one.name, "aria-label": K.say("ui.document.name"), "data-kv-keep": `name-${one.document}` });
    const end = async (event) => {
      event.preventDefault();
      renaming = null;
      if (input.value.trim() && input.value !== one.name) await told(one, K.call("rename_document", { document: one.document, name: input.value }));
      else draw();
    };
    input.addEventListener("keydown", (event) => {
      if (event.isComposing || event.keyCode === 229 || event.key !== "Escape") return;
      event.stopPropagation();
      renaming = null;
      draw();
    });
    return K.el("form", { class: "kv-doc-rename", on: { submit: end } }, input, K.button("ui.save", "check", () => {}, { class: "kv-tool", type: "submit" }));
  };
  const password = (one) => {
    const input = K.el("input", { class: "kv-input", type: "password", autocomplete: "off", "aria-label": K.say("ui.password"), placeholder: K.say("ui.password"), "data-kv-keep": `password-${one.document}` });
    const open = async (event) => {
      event.preventDefault();
      const typed = input.value;
      input.value = "";
      await told(one, K.call("unlock_document", { chat: K.chat, document: one.document, password: typed }));
    };
    return K.el("form", { class: "kv-doc-password", on: { submit: open } },
      K.el("p", { class: "kv-doc-problem", text: one.problem ? `${one.problem.message}` : K.say("ui.locked") }),
      K.el("div", {}, input, K.el("button", { type: "submit", class: "kv-plain", text: K.say("ui.unlock") })));
  };
  const told = async (one, call) => {
    const found = await call;
    refused = found.error ? { document: one.document, text: `${found.error.message} ${found.error.remedy}` } : null;
    if (refused) draw();
    else await K.refreshDocuments();
  };
  K.pinDocument = (one, page, pinned) => told(one, K.call("pin", { chat: K.chat, document: one.document, page, pinned }));
  K.leavePage = (one, page, left) => told(one, K.call("leave_page", { chat: K.chat, document: one.document, page, left }));

  // How it is read, what each way costs, and how far it is read ahead.
  const reading = (one, plan) => {
    const name = `read-${one.document}`;
    const group = K.el("div", { class: "kv-segments kv-read", role: "radiogroup", "aria-label": K.say("ui.read") },
      ...CHOICES.map(([mode, code]) => {
        const cost = costOf(mode, plan);
        const button = K.el("button", { type: "button", role: "radio", "aria-checked": String(plan.chosen === mode), tabindex: plan.chosen === mode ? "0" : "-1", "data-kv-keep": `${name}-${mode}`, text: K.say(code), title: cost, on: { click: () => choose(one, mode) } });
        return button;
      }));
    group.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const at = CHOICES.findIndex(([mode]) => mode === plan.chosen);
      const next = CHOICES[(at + step + CHOICES.length) % CHOICES.length][0];
      group.children[(at + step + CHOICES.length) % CHOICES.length].focus();
      choose(one, next);
    });
    const numbers = plan.chosen === null && plan.reason === "too_large" && plan.mode !== "whole" ? roomSaid(plan, plan.room.unasked) : "";
    const lines = [numbers && !plan.fits ? "" : costOf("whole", plan), costOf("passages", plan)]; // what lacks is said once
    const why = plan.chosen === null && REASONS[plan.reason] ? [K.say(REASONS[plan.reason]), numbers].filter(Boolean).join(": ") : "";
    return [group, K.el("p", { class: "kv-doc-note" }, [why, ...lines].filter(Boolean).join(" · ")), ahead(one, plan), stored(one)].filter(Boolean);
  };
  const stored = (one) => (one.formats ? K.el("p", { class: "kv-doc-note", text: K.say("ui.mark.formats", { format: K.format(one.formats) }) }) : null);
  const costOf = (mode, plan) => {
    if (mode === "off") return K.say("ui.cost.off") + againSaid(plan.again.off);
    if (mode === null) return K.say("ui.cost.auto");
    const whole = mode === "whole";
    const cost = K.say(`ui.cost.${mode}`, whole ? { tokens: plan.tokens, size: K.size(plan.bytes) } : { tokens: plan.passage_tokens, size: K.size(plan.passage_bytes) });
    if (whole && !plan.fits) return `${K.say("ui.cost.whole.not", { tokens: plan.tokens })}: ${roomSaid(plan, plan.room.chosen)}`;
    return cost + againSaid(plan.again[mode]);
  };
  // What comes after a document in the prompt is read again where its text comes or goes.
  const againSaid = (again) => (again ? K.say((again.s ?? 0) < 1 ? "ui.cost.again" : "ui.cost.again.s", { tokens: again.tokens, s: K.seconds(again.s ?? 0) }) : "");
  const roomSaid = ({ tokens, room }, most) =>
    [K.say("ui.room.whole", { tokens, room: most.tokens }), K.say(`ui.room.${most.limit}`, room), room.others ? K.say("ui.room.others", room) : ""].filter(Boolean).join(" ");
  const choose = (one, mode) => told(one, K.call("choose_document", { chat: K.chat, document: one.document, mode }));
  const ahead = (one, plan) => {
    const now = one.ahead;
    if (!now || plan.mode !== "whole") return null;
    const text = K.say(AHEAD[now.stage], { done: now.done, of: now.of });
    return now.stage === "reading" ? progress(now.done, now.of, text) : K.el("p", { class: "kv-doc-note kv-ahead", text });
  };
  const progress = (done, of, text) => {
    const fill = K.el("i");
    const share = of ? (done / of) * 100 : 0;
    fill.style.width = `${share.toFixed(1)}%`;
    return K.el("div", { class: "kv-doc-progress" }, K.el("span", { class: "kv-muted", text }),
      K.el("span", { class: "kv-progress", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": share.toFixed(0), "aria-label": text }, fill));
  };

  // A chip a page: what was found on it, what it costs, whether it is cited, pinned or left out.
  const chips = (one) => {
    const rows = pages.get(one.document)?.rows ?? [];
    const cited = new Set(K.citesOf(one.document).map((cite) => cite.page));
    const shown = K.shownPage();
    const here = shown?.document === one.document ? shown.page : null;
    const numbers = Array.from({ length: one.num_pages }, (_, n) => n + 1);
    const first = all.has(one.document) ? numbers : numbers.filter((page) => page <= FEW || cited.has(page) || page === here || one.pinned_pages?.includes(page) || one.left_pages?.includes(page));
    const box = K.el("div", { class: "kv-page-chips", role: "group", "aria-label": K.say("ui.pages.of", { name: one.name }) },
      ...first.map((page) => pageChip(one, page, rows[page - 1], cited.has(page), page === here)));
    if (first.length < numbers.length) box.append(K.el("button", { type: "button", class: "kv-link", text: K.say("ui.pages.all", { pages: one.num_pages }), on: { click: () => { all.add(one.document); draw(); } } }));
    return box;
  };
  const pageChip = (one, page, row, cited, here) => {
    const left = Boolean(one.left_pages?.includes(page));
    const pinned = Boolean(one.pinned_pages?.includes(page));
    const plan = plans.get(one.document);
    const facts = row ? [K.say(VERDICTS[row.verdict] ?? "ui.page.text"), row.num_tokens ? K.say("ui.figures.tokens", { tokens: row.num_tokens }) : "", row.num_tokens && plan ? K.size(row.num_tokens * plan.bytes_per_token) : ""] : [];
    if (row?.confidence) facts.push(K.say("ui.page.confidence", { percent: row.confidence }));
    const states = [left ? K.say("ui.page.is_left") : "", pinned ? K.say("ui.page.is_pinned") : "", cited ? K.say("ui.page.cited") : ""];
    const name = K.pageName({ page, label: row?.label });
    const about = [name, ...facts, ...states].filter(Boolean).join(" · ");
    const marks = [here && "kv-here", pinned && "kv-pinned", cited && "kv-cited", left && "kv-left", row && row.verdict !== "text" && (UNREAD.includes(row.verdict) ? "kv-unread-page" : "kv-odd-page")].filter(Boolean);
    return K.el("button", { type: "button", class: ["kv-page-chip", ...marks].join(" "), "aria-pressed": String(Boolean(here)), "aria-label": about, title: about, text: K.say("ui.page", { page }), on: { click: () => K.openPage(one.document, page) } });
  };

  // What is asked for only while somebody looks.
  const look = async () => {
    if (!K.panel.isOpen("documents") || !K.chat) return;
    const chat = K.chat;
    const found = await K.call("document_plan", { chat });
    if (chat !== K.chat) return;
    plans = new Map((found.plan ?? []).map((row) => [row.document, row]));
    draw();
    for (const one of documents) {
      const key = [one.pages_done, one.num_recognised, one.num_tokens].join();
      if (one.problem || !one.pages_done || pages.get(one.document)?.key === key) continue;
      const read = await K.call("document_pages", { chat, document: one.document });
      if (chat !== K.chat) return;
      if (read.pages) pages.set(one.document, { key, rows: read.pages });
      draw();
    }
  };
  let soon = 0;
  const lookSoon = () => {
    clearTimeout(soon);
    soon = setTimeout(look, 150);
  };
  K.panel.onShow("documents", lookSoon);
  K.on("documents", (list) => {
    const grew = list.length > documents.length;
    documents = list;
    if (grew && matchMedia("(min-width: 1100px)").matches && !K.panel.isOpen()) K.panel.open("documents");
    draw();
    lookSoon();
  });
  // How far a text is read ahead comes with the frames.
  let stage = "";
  K.on("frame", (frame) => {
    const rows = new Map((frame.documents ?? []).map((row) => [row.document, row.ahead]));
    const now = JSON.stringify([...rows.values()]);
    if (now === stage) return;
    stage = now;
    documents = documents.map((one) => (rows.has(one.document) ? { ...one, ahead: rows.get(one.document) } : one));
    draw();
  });
  K.on("chat", () => {
    refused = renaming = null;
    plans = new Map();
    all.clear();
  });
  K.on("page", draw);
  K.on("notes", draw);
})();
