// What a screen reader is told without being asked: that an answer begins and that it is complete, not
// each word of it; and a way past the list and the bar for those who go by the keyboard.
(() => {
  const K = window.kvchat;
  const said = K.el("div", { class: "kv-only-heard", role: "status", "aria-live": "polite" });
  const tell = (text) => {
    said.textContent = "";
    setTimeout(() => (said.textContent = text), 50); // the same words twice are heard twice
  };
  K.on("heard", tell);
  let live = null;
  K.on("notes", (notes) => {
    const now = notes.live ? `${notes.chat}/${notes.live.turn}` : null;
    if (now && now !== live) tell(K.say("ui.heard.begun"));
    if (!now && live?.startsWith(`${notes.chat}/`)) {
      const last = notes.turns.at(-1);
      const cut = last && (!last.answered || ["length", "cancelled", "interrupted", "failed", "circles"].includes(last.finish_reason));
      tell(K.say(cut ? "ui.heard.cut" : "ui.heard.done"));
    }
    live = now;
  });
  K.on("online", (is) => tell(is ? K.say("ui.heard.back") : K.say("ui.offline")));

  const skip = (code, to) =>
    K.el("a", { class: "kv-skip", href: "#", text: K.say(code), on: { click: (event) => {
      event.preventDefault();
      const target = document.querySelector(to);
      if (target && target.tabIndex < 0) target.setAttribute("tabindex", "-1");
      target?.focus();
    } } });
  const skips = K.el("div", { class: "kv-skips", role: "navigation", "aria-label": K.say("ui.skip") }, skip("ui.skip.box", "#kv-input"), skip("ui.skip.talk", "#kv-chat [role=log]"));
  const place = () => {
    document.body.prepend(skips);
    document.body.append(said);
  };
  if (document.body) place();
  else addEventListener("DOMContentLoaded", place);

  // The browser's tab is named after the chat: of several tabs it is seen which is which.
  let rows = [];
  const name = () => {
    const row = rows.find((one) => one.id === K.chat);
    const title = row?.title ? `${row.title} · kvchat` : "kvchat";
    if (document.title !== title) document.title = title;
  };
  K.on("chats", (list) => {
    rows = list;
    name();
  });
  K.on("chat", name);
})();
