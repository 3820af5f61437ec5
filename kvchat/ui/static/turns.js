// What stands under each question and reply: figures, citations, versions, how it ended, the tools.
// The places are in the messages (`kv-foot-N`, `kv-tools-N`); a message drawn anew has an empty one.
(() => {
  const K = window.kvchat;
  K.isLive = (turn) => K.notes.live?.turn === turn;
  // A turn as this page shows it: its number, and its name in case another turn has the number by now.
  K.turnOf = (note) => ({ turn: note.turn, name: note.name });
  const noteOf = (turn) => K.notes.turns.find((note) => note.turn === turn);
  const busy = () => Boolean(K.notes.live);
  const OFFERED = {
    length: ["ui.continue"],
    interrupted: ["ui.continue"],
    cancelled: ["ui.continue"],
    circles: ["ui.continue", "ui.less_repeating"],
    failed: ["ui.continue", "ui.try_again"],
    unanswered: ["ui.try_again", "ui.edit.again"],
  };
  const ENDS = Object.keys(OFFERED);
  const log = () => document.querySelector("#kv-chat [role=log]");

  const fill = (anew) => {
    const chat = document.getElementById("kv-chat");
    if (!chat) return;
    let filled = false;
    for (const spot of chat.querySelectorAll(anew ? ".kv-foot, .kv-tools" : ".kv-foot:empty, .kv-tools:empty")) {
      const note = noteOf(Number(spot.id.split("-").at(-1)));
      if (!note) continue;
      const unseen = (note.citations ?? []).map((cite) => K.unseenDocument(cite.document));
      const key = JSON.stringify([note, K.notes.live, K.notes.turns.length, unseen]);
      if (spot.kvKey === key && spot.firstChild) continue;
      spot.kvKey = key;
      filled = true;
      spot.classList.remove("kv-asking");
      spot.replaceChildren(...(spot.classList.contains("kv-foot") ? foot(note) : tools(note)));
    }
    drawEarlier(chat.querySelector(".kv-earlier"));
    rename(chat);
    if (filled) K.drawFigures();
  };
  // gradio names each message by its whole markup, in English; the message itself is all that is needed.
  const rename = (chat) => {
    for (const message of chat.querySelectorAll("[data-testid][aria-label]")) message.removeAttribute("aria-label");
    const wanted = [
      [log(), "aria-label", K.say("ui.conversation")],
      [log(), "aria-live", "off"], // heard.js tells of answers
      [chat.querySelector(".scroll-down-button-container button"), "title", K.say("ui.to_bottom")],
      [chat.querySelector(".scroll-down-button-container button"), "aria-label", K.say("ui.to_bottom")],
    ];
    for (const [element, name, value] of wanted) if (element && element.getAttribute(name) !== value) element.setAttribute(name, value);
  };

  const foot = (note) => {
    const live = K.isLive(note.turn);
    const bar = K.el("div", { class: "kv-reply-tools" });
    if (!live && note.num_siblings > 1) bar.append(versions(note));
    if (!live) {
      bar.append(
        tool("ui.copy_reply", "copy", (event) => copy(note.turn, "reply", event.currentTarget)),
        tool("ui.regenerate", "again", () => K.act("regenerate", K.turnOf(note)), busy())
      );
    }
    const parts = [
      note.citations?.length ? K.citations(note.citations, !live && note.answered) : null,
      K.sources(note),
      live ? null : ending(note),
      K.el("div", { class: "kv-foot-line" }, K.figuresLine(note.turn), bar),
    ];
    return parts.filter(Boolean);
  };
  const tools = (note) => [
    tool(note.pinned ? "ui.unpin" : "ui.pin", note.pinned ? "pinned" : "pin", (event) => pin(event.currentTarget.parentElement, note)),
    tool("ui.copy_question", "copy", (event) => copy(note.turn, "text", event.currentTarget)),
    tool("ui.edit", "pencil", () => K.edit(note.turn), busy()),
    tool("ui.delete_turn", "trash", (event) => sure(event.currentTarget.parentElement, note), busy()),
  ];
  const tool = (code, icon, press, disabled = false) => K.button(code, icon, press, { class: "kv-tool", disabled });
  const copy = async (turn, which, button) => {
    const found = await K.call("source", { chat: K.chat, turn });
    if (found[which] !== undefined) K.copy(found[which], button);
  };
  K.copyLast = () => {
    const last = K.notes.turns.at(-1);
    if (last) copy(last.turn, "reply", document.querySelector(`#kv-foot-${last.turn} .kv-icon-copy`)?.parentElement);
  };
  const anew = (spot) => {
    spot.kvKey = "";
    fill(true);
  };
  const pin = async (spot, note) => {
    const found = await K.call("pin", { chat: K.chat, ...K.turnOf(note), pinned: !note.pinned });
    if (!found.error) return K.act("open");
    const leave = K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.close"), on: { click: () => anew(spot) } });
    spot.replaceChildren(K.el("span", { class: "kv-muted", text: `${found.error.message} ${found.error.remedy}` }), leave);
    spot.classList.add("kv-asking");
    leave.focus();
  };
  const sure = (spot, note) => {
    const keep = () => anew(spot);
    const no = K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.keep"), on: { click: keep } });
    spot.replaceChildren(
      K.el("span", { class: "kv-muted", text: K.say(note.num_siblings > 1 ? "ui.delete_turn.sure.versions" : "ui.delete_turn.sure") }),
      no,
      K.el("button", { type: "button", class: "kv-danger", text: K.say("ui.delete"), on: { click: () => K.act("remove", K.turnOf(note)) } })
    );
    spot.classList.add("kv-asking");
    no.focus();
  };
  // Escape: what is asked under a question is not done; whether something was asked.
  K.endAsking = () => {
    const asking = document.querySelector("#kv-chat .kv-asking");
    if (!asking) return false;
    anew(asking);
    asking.querySelector("button:last-of-type")?.focus();
    return true;
  };
  const versions = (note) => {
    const go = (step) => K.act("switch", { ...K.turnOf(note), sibling: note.sibling + step });
    return K.el("span", { class: "kv-versions", role: "group", "aria-label": K.say("ui.versions") },
      tool("ui.version.before", "left", () => go(-1), busy() || note.sibling <= 1),
      K.el("span", { text: `${note.sibling}/${note.num_siblings}` }),
      tool("ui.version.after", "right", () => go(1), busy() || note.sibling >= note.num_siblings));
  };
  const ending = (note) => {
    const end = note.answered ? note.finish_reason : note.finish_reason === "cancelled" ? "cancelled" : "unanswered";
    if (!ENDS.includes(end)) return null;
    const why = note.problem ? `${note.problem.message} ${note.problem.remedy}` : "";
    const isLast = note.turn === K.notes.turns.at(-1)?.turn;
    const unseen = end === "unanswered" && !isLast && K.isTooLong(note) ? K.say("ui.end.unseen") : "";
    const said = [end === "unanswered" && why ? "" : K.say(`ui.end.${end}`), why, unseen].filter(Boolean).join(" ");
    const row = K.el("div", { class: `kv-end kv-end-${end}` }, K.icon("note"), K.el("span", { text: said }));
    if (!isLast || busy()) return row;
    const press = {
      "ui.less_repeating": () => K.act("less_repeating", K.turnOf(note)),
      "ui.try_again": () => K.act("regenerate", K.turnOf(note)),
      "ui.edit.again": () => K.edit(note.turn),
      "ui.continue": () => K.act("continue", K.turnOf(note)),
    };
    const offered = end === "unanswered" && K.isTooLong(note) ? ["ui.edit.again"] : OFFERED[end]; // as it is, it never fits
    for (const code of offered) row.append(K.el("button", { type: "button", class: "kv-link", text: K.say(code), on: { click: press[code] } }));
    return row;
  };

  const drawEarlier = (spot) => {
    if (!spot || spot.firstChild) return;
    const more = () => {
      K.holdPlace();
      K.shown = K.notes.turns.length + 24;
      K.act("open");
    };
    spot.append(K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.earlier", { turns: K.notes.earlier }), on: { click: more } }));
  };
  K.on("notes", () => fill(true));
  K.on("documents", () => fill(true)); // one of them may be switched off, or taken out
  const watch = () => {
    const chat = document.getElementById("kv-chat");
    if (!chat) return setTimeout(watch, 50);
    const look = () => {
      fill(false);
      K.drawUndo();
      K.settle();
    };
    new MutationObserver(look).observe(chat, { childList: true, subtree: true, attributeFilter: ["aria-label"] });
    fill(false);
  };
  watch();
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".kv-copy");
    const fold = event.target.closest?.(".kv-fold");
    if (fold) fold.closest(".kv-ask").classList.toggle("kv-open");
    if (button) K.copy(button.closest(".kv-code").querySelector("code").textContent, button);
  });
})();
