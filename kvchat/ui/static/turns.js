// What stands under each question and reply: figures, citations, versions, how it ended, and the tools.
// The places are in the messages (`kv-foot-N`, `kv-tools-N`); a message drawn anew has an empty one.
(() => {
  const K = window.kvchat;
  const noteOf = (turn) => K.notes.turns.find((note) => note.turn === turn);
  const isLive = (turn) => K.notes.live?.turn === turn;
  const busy = () => Boolean(K.notes.live);

  const fill = (anew) => {
    const chat = document.getElementById("kv-chat");
    if (!chat) return;
    for (const place of chat.querySelectorAll(".kv-foot, .kv-tools")) {
      const turn = Number(place.id.split("-").at(-1));
      const note = noteOf(turn);
      if (!note || !(anew || !place.firstChild)) continue;
      const key = JSON.stringify([note, K.notes.live, K.notes.turns.length]);
      if (place.kvKey === key && place.firstChild) continue;
      place.kvKey = key;
      place.replaceChildren(...(place.classList.contains("kv-foot") ? foot(note) : tools(note)));
    }
    drawEarlier(chat.querySelector(".kv-earlier"));
    quiet(chat);
    figures();
  };
  // gradio names each message by its whole markup, in English; the message itself is all that is needed.
  const quiet = (chat) => {
    for (const message of chat.querySelectorAll("[data-testid][aria-label]")) message.removeAttribute("aria-label");
    const log = chat.querySelector("[role=log]");
    const wanted = { "aria-label": K.say("ui.conversation"), "aria-live": K.notes.live ? "off" : "polite" };
    for (const [name, value] of Object.entries(wanted)) if (log && log.getAttribute(name) !== value) log.setAttribute(name, value);
  };

  const foot = (note) => {
    const parts = [];
    if (note.citations?.length) parts.push(K.citations(note.citations));
    const end = isLive(note.turn) ? null : ending(note);
    if (end) parts.push(end);
    const line = K.el("div", { class: "kv-figures", id: `kv-figures-${note.turn}` }, K.el("span", { class: "kv-chip" }), K.el("span", { class: "kv-speed" }));
    const bar = K.el("div", { class: "kv-reply-tools" });
    if (!isLive(note.turn)) {
      if (note.num_siblings > 1) bar.append(versions(note));
      bar.append(
        tool("ui.copy_reply", "copy", (event) => copy(note.turn, "reply", event.currentTarget)),
        tool("ui.regenerate", "again", () => K.act("regenerate", { turn: note.turn }), busy())
      );
    }
    parts.push(K.el("div", { class: "kv-foot-line" }, line, bar));
    return parts;
  };
  const tools = (note) => [
    tool("ui.copy_question", "copy", (event) => copy(note.turn, "text", event.currentTarget)),
    tool("ui.edit", "pencil", () => K.edit(note.turn), busy()),
    tool("ui.delete_turn", "trash", (event) => sure(event.currentTarget, note), busy()),
  ];
  const tool = (code, icon, press, disabled = false) => K.button(code, icon, press, { class: "kv-tool", disabled });
  const copy = async (turn, which, button) => {
    const found = await K.call("source", { chat: K.chat, turn });
    if (found[which] !== undefined) K.copy(found[which], button);
  };
  K.copyLast = () => {
    const last = K.notes.turns.at(-1);
    if (last) copy(last.turn, "reply", document.querySelector(`#kv-foot-${last.turn} .kv-tool`));
  };
  const sure = (button, note) => {
    const place = button.parentElement;
    const yes = K.el("button", { type: "button", class: "kv-danger", text: K.say("ui.delete"), on: { click: () => K.act("remove", { turn: note.turn }) } });
    const no = K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.keep"), on: { click: () => { place.kvKey = ""; fill(true); } } });
    place.replaceChildren(K.el("span", { class: "kv-muted", text: K.say("ui.delete_turn.sure") }), no, yes);
    place.classList.add("kv-asking");
    no.focus();
  };
  const versions = (note) => {
    const go = (step) => K.act("switch", { turn: note.turn, sibling: note.sibling + step });
    return K.el("span", { class: "kv-versions", role: "group", "aria-label": K.say("ui.versions") },
      K.button("ui.version.before", "left", () => go(-1), { class: "kv-tool", disabled: busy() || note.sibling <= 1 }),
      K.el("span", { text: `${note.sibling}/${note.num_siblings}` }),
      K.button("ui.version.after", "right", () => go(1), { class: "kv-tool", disabled: busy() || note.sibling >= note.num_siblings }));
  };
  const ending = (note) => {
    if (!["length", "cancelled", "failed"].includes(note.finish_reason)) return null;
    const row = K.el("div", { class: `kv-end kv-end-${note.finish_reason}` }, K.icon("note"), K.el("span", { text: K.say(`ui.end.${note.finish_reason}`) }));
    const last = note.turn === K.notes.turns.at(-1)?.turn;
    if (last && note.finish_reason !== "cancelled" && !busy()) {
      const again = note.finish_reason === "failed";
      row.append(K.el("button", { type: "button", class: "kv-link", text: K.say(again ? "ui.try_again" : "ui.continue"), on: { click: () => (again ? K.act("regenerate", { turn: note.turn }) : K.ask(K.say("ui.continue.words"))) } }));
    }
    return row;
  };
  const drawEarlier = (place) => {
    if (!place || place.firstChild) return;
    place.append(K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.earlier", { turns: K.notes.earlier }), on: { click: () => {
      K.shown = K.notes.turns.length + 24;
      K.act("open");
    } } }));
  };

  // The figures: what the cache holds of the turn now, and what the answer took.
  const figures = () => {
    const held = new Map(K.turnsOf(K.frame).map((span) => [span.turn, span]));
    for (const line of document.querySelectorAll(".kv-figures")) {
      const note = noteOf(Number(line.id.split("-").at(-1)));
      if (!note) continue;
      const [chip, speed] = line.children;
      const span = held.get(note.turn);
      chip.style.setProperty("--kv-tone", K.fill(span?.formats ?? note.figures?.formats));
      K.put(chip, chipOf(note, span));
      K.put(speed, speedOf(note));
      K.show(chip, Boolean(chip.textContent));
    }
  };
  K.figuresOf = (note, span) => {
    const made = note.figures;
    const formats = Object.entries(span?.formats ?? made?.formats ?? {}).filter(([, bytes]) => bytes > 0).map(([name]) => K.format(name));
    return { tokens: span?.tokens ?? (made ? made.prompt_tokens + made.reply_tokens : null), bytes: span?.bytes ?? null, formats };
  };
  const chipOf = (note, span) => {
    if (!span && !note.figures) return "";
    const found = K.figuresOf(note, span);
    const parts = [K.say("ui.bar.turn", { turn: note.turn })];
    if (span) parts.push(K.say("ui.figures.tokens", { tokens: found.tokens }), K.size(found.bytes), found.formats.join(" + "));
    else parts.push(K.say("ui.figures.not_held"));
    if (span?.tier && span.tier !== "device") parts.push(K.say(`ui.tier.${span.tier}`));
    return parts.filter(Boolean).join(" · ");
  };
  const speedOf = (note) => {
    const made = note.figures;
    if (isLive(note.turn)) {
      const status = K.notes.live.status;
      const rate = pace.rate;
      if (status !== "decode") return K.say(`ui.live.${status}`);
      return [K.say("ui.live.decode"), rate ? K.say("ui.figures.rate", { rate: K.number(rate, 1) }) : ""].filter(Boolean).join(" · ");
    }
    if (!made) return "";
    const parts = [K.say("ui.figures.reused", { tokens: made.reused_tokens, of: made.prompt_tokens })];
    if (made.time_to_first_token_s !== undefined) parts.push(K.say("ui.figures.first", { s: made.time_to_first_token_s.toFixed(2) }));
    if (made.decode_tokens_per_s) parts.push(K.say("ui.figures.rate", { rate: K.number(made.decode_tokens_per_s, 1) }));
    parts.push(K.say("ui.figures.reply", { tokens: made.reply_tokens }));
    return parts.join(" · ");
  };

  // How fast the answer grows, from what the cache gained in the last seconds.
  const pace = { turn: 0, points: [], rate: 0 };
  const measure = (frame) => {
    const turn = K.notes.live?.status === "decode" ? K.notes.live.turn : 0;
    const tokens = K.turnsOf(frame).find((span) => span.turn === turn)?.tokens;
    if (turn !== pace.turn) Object.assign(pace, { turn, points: [], rate: 0 });
    if (!turn || tokens === undefined) return;
    pace.points = [...pace.points, { at: performance.now(), tokens }].filter((one) => one.at > performance.now() - 3000);
    const first = pace.points[0];
    const s = (performance.now() - first.at) / 1000;
    if (s > 0.5) pace.rate = (tokens - first.tokens) / s;
  };

  K.on("notes", () => fill(true));
  K.on("frame", (frame) => {
    measure(frame);
    figures();
  });
  const watch = () => {
    const chat = document.getElementById("kv-chat");
    if (!chat) return setTimeout(watch, 50);
    new MutationObserver(() => fill(false)).observe(chat, { childList: true, subtree: true, attributeFilter: ["aria-label"] });
    fill(false);
  };
  watch();
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".kv-copy");
    if (button) K.copy(button.closest(".kv-code").querySelector("code").textContent, button);
  });
})();
