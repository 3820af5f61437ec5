// The box at the bottom: question, send or stop, files, and how much room the context has left.
(() => {
  const K = window.kvchat;
  let box;
  const draftKey = () => `kvchat.draft.${K.chat ?? "new"}`;
  const keep = () => {
    try {
      if (box.value) localStorage.setItem(draftKey(), box.value);
      else localStorage.removeItem(draftKey());
    } catch {
      // no storage, no draft
    }
  };
  const restore = () => {
    try {
      box.value = localStorage.getItem(draftKey()) ?? "";
    } catch {
      box.value = "";
    }
    K.grow(box, 240);
    K.emit("typed");
  };
  // A chat that was new has got its name: what is being written goes along.
  const move = (chat) => {
    const text = box.value;
    try {
      localStorage.removeItem(draftKey());
      if (text) localStorage.setItem(`kvchat.draft.${chat ?? "new"}`, text);
    } catch {
      // no storage, no draft
    }
  };
  K.grow = (area, most) => {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, most)}px`;
  };
  const busy = () => Boolean(K.notes.live);
  K.offline = () => ({ message: K.say("ui.offline"), remedy: K.say("ui.offline.remedy"), offline: true });

  K.draw.composer = (root) => {
    box = K.el("textarea", { id: "kv-input", rows: "1", placeholder: K.say(matchMedia("(max-width: 799px)").matches ? "ui.ask.short" : "ui.ask"), "aria-label": K.say("ui.ask"), enterkeyhint: "send" });
    const send = K.el("button", { type: "submit", class: "kv-send", title: K.say("ui.send"), "aria-label": K.say("ui.send") }, K.icon("send"));
    const stop = K.el("button", { type: "button", class: "kv-stop", hidden: true, title: K.say("ui.stop"), on: { click: K.stop } }, K.icon("stop"), K.el("span", { text: K.say("ui.stop") }), K.el("kbd", { text: "Esc" }));
    const form = K.el("form", { class: "kv-composer" },
      K.button("ui.attach", "clip", () => K.chooseFiles(), { class: "kv-ghost kv-attach" }), box, send, stop);
    const problem = K.el("div", { class: "kv-card kv-problem", role: "alert", hidden: true });
    const hint = K.el("p", { class: "kv-hint kv-wait", role: "status", hidden: true });
    root.append(K.welcome(), problem, K.attachments(), hint, K.tooLong(box), form, meter());

    const draw = () => {
      const stoppable = busy() && K.online; // what does not answer cannot be stopped either
      K.show(stop, stoppable);
      K.show(send, !stoppable);
      if (!busy()) {
        stop.disabled = false;
        K.show(hint, false);
      }
      send.disabled = !box.value.trim();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    box.addEventListener("keydown", (event) => {
      if (event.isComposing || event.keyCode === 229) return;
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        submit();
      } else if (event.key === "ArrowUp" && !box.value && K.notes.turns.length) {
        event.preventDefault();
        if (!busy()) K.edit(K.notes.turns.at(-1).turn);
      }
    });
    box.addEventListener("input", () => {
      K.grow(box, 240);
      keep();
      draw();
    });
    K.on("typed", draw);
    K.on("adopt", move);
    K.on("chat", restore);
    K.on("focus", () => box.focus());
    K.on("problem", (found) => drawProblem(problem, found));
    K.on("hint", (code) => {
      K.put(hint, K.say(code));
      K.show(hint, true);
    });
    K.on("online", (is) => {
      if (is && problem.dataset.offline) drawProblem(problem, null);
      draw();
    });
    K.on("notes", (notes) => {
      arrived();
      drawProblem(problem, notes.problem);
      draw();
    });
    restore();
    draw();
    if (matchMedia("(min-width: 800px)").matches) box.focus();
  };

  // What was sent is kept until it has arrived: a question is not lost with the connection.
  let sent = null;
  const submit = async () => {
    const text = box.value.trim();
    if (!text || sent) return;
    if (!K.online) return K.emit("problem", K.offline());
    if (busy()) return K.emit("hint", "ui.wait");
    sent = { text };
    box.value = "";
    keep();
    K.grow(box, 240);
    K.emit("typed");
    K.follow();
    await K.uploaded;
    sent = { text, lost: setTimeout(giveBack, 8000) };
    K.ask(text);
  };
  const giveBack = () => {
    const { text } = sent;
    sent = null;
    K.emit("problem", { ...K.offline(), unsent: text });
  };
  const arrived = () => {
    if (!sent?.lost) return; // it has not left yet
    clearTimeout(sent.lost);
    sent = null;
  };
  K.fillIn = (text) => {
    box.value = text;
    keep();
    K.grow(box, 240);
    K.emit("typed");
    box.focus();
  };
  // A step that is being computed is finished first; until then the button shows that it was heard.
  K.stop = () => {
    if (!busy() || !K.chat) return;
    document.querySelector(".kv-stop").disabled = true;
    K.call("stop", { chat: K.chat });
  };
  const drawProblem = (card, problem) => {
    K.show(card, Boolean(problem));
    card.dataset.offline = problem?.offline ? "true" : "";
    if (!problem) return;
    card.replaceChildren(K.icon("note"), K.el("div", {}, K.el("strong", { text: problem.message }), K.el("span", { text: problem.remedy })),
      K.button("ui.close", "close", () => { K.show(card, false); K.emit("closed"); }, { class: "kv-tool" }));
    if (problem.unsent && !box.value) K.fillIn(problem.unsent);
  };

  // The context: one band a turn, so that it is seen what fills it.
  const meter = () => {
    const track = K.el("div", { class: "kv-meter-track" });
    const text = K.el("span", { class: "kv-meter-text" });
    const row = K.el("div", { class: "kv-meter", role: "img" }, K.el("span", { class: "kv-muted", text: K.say("ui.context") }), track, text);
    K.on("frame", (frame) => {
      const room = K.capacity(frame);
      K.show(row, Boolean(room));
      if (!room) return;
      const spans = K.shownSpans(frame).filter((span) => span.tokens > 0);
      while (track.children.length > spans.length) track.lastChild.remove();
      while (track.children.length < spans.length) track.append(K.el("i"));
      spans.forEach((span, at) => {
        const band = track.children[at];
        const seen = span.tokens - (span.evicted_tokens ?? 0);
        const width = `${((seen / Math.max(room.most, room.used)) * 100).toFixed(3)}%`;
        if (band.style.width !== width) band.style.width = width;
        const fill = K.fill(span.formats);
        if (band.dataset.fill !== fill) band.style.background = band.dataset.fill = fill;
      });
      const said = room.standing ? room.standing.where : room.used > room.most ? "over" : "used";
      const evicted = room.evicted ? K.say("ui.context.evicted", { tokens: room.evicted }) : "";
      const versions = room.versions ? K.say("ui.context.versions", { bytes: K.size(room.versions) }) : "";
      K.put(text, [K.say(`ui.context.${said}`, room), evicted, versions].filter(Boolean).join(" · "));
      row.setAttribute("aria-label", `${K.say("ui.context")}: ${text.textContent}`);
    });
    return row;
  };
})();
