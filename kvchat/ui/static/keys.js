// Shortcuts. Nothing happens while a syllable is being composed (Korean, Chinese, Japanese input).
(() => {
  const K = window.kvchat;
  const LIST = [
    ["Enter", "ui.keys.send"],
    ["Shift Enter", "ui.keys.newline"],
    ["Esc", "ui.keys.stop"],
    ["↑", "ui.keys.edit_last"],
    ["Ctrl Shift O", "ui.keys.new"],
    ["Ctrl K", "ui.keys.search"],
    ["Ctrl Shift C", "ui.keys.copy_last"],
    ["Ctrl .", "ui.keys.settings"],
    ["Ctrl /", "ui.keys.list"],
  ];
  let dialog = null;
  const list = () => {
    if (!dialog) {
      const rows = LIST.flatMap(([keys, code]) => [K.el("dt", {}, ...keys.split(" ").map((key) => K.el("kbd", { text: key }))), K.el("dd", { text: K.say(code) })]);
      dialog = K.el("dialog", { class: "kv-dialog", "aria-label": K.say("ui.keys") }, K.el("h2", { text: K.say("ui.keys") }), K.el("dl", {}, ...rows), K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.close"), on: { click: () => dialog.close() } }));
      document.body.append(dialog);
    }
    if (dialog.open) dialog.close();
    else dialog.showModal();
  };
  const escape = () => {
    if (document.querySelector("dialog[open]")) return; // it closes itself
    if (K.endAsking() || K.endEdit()) return;
    if (K.notes.live) K.stop();
    else if (document.body.classList.contains("kv-side-open")) K.showSide(false);
    else if (K.panel.isOpen() && matchMedia("(max-width: 1099px)").matches) K.panel.close();
  };
  addEventListener("keydown", (event) => {
    if (event.isComposing || event.keyCode === 229) return;
    const ctrl = event.ctrlKey || event.metaKey;
    const key = event.key.toLowerCase();
    let act = null;
    if (key === "escape" && !ctrl) act = escape;
    else if (ctrl && event.shiftKey && key === "o") act = K.newChat;
    else if (ctrl && event.shiftKey && key === "c") act = K.copyLast;
    else if (ctrl && !event.shiftKey && key === "k") act = K.focusSearch;
    else if (ctrl && !event.shiftKey && (key === "." || key === ",")) act = () => K.panel.toggle("settings");
    else if (ctrl && key === "/") act = list;
    if (!act) return;
    if (key !== "escape") event.preventDefault();
    act();
  });
  document.addEventListener("click", (event) => {
    if (!document.body.classList.contains("kv-side-open")) return;
    if (!event.target.closest("#kv-side, .kv-only-narrow")) document.body.classList.remove("kv-side-open");
  });
  // The list of chats lies over a narrow window: it takes the focus, and gives it back.
  K.showSide = (open) => {
    document.body.classList.toggle("kv-side-open", open);
    const menu = document.querySelector(".kv-only-narrow");
    menu?.setAttribute("aria-expanded", String(open));
    if (open) setTimeout(() => document.querySelector(".kv-new")?.focus(), 0);
    else if (menu?.checkVisibility()) menu.focus();
  };
  // What lies over all that is behind it, which cannot be seen: there the focus goes around, past the
  // last control and the first.
  const covering = () => {
    const side = document.getElementById("kv-side");
    const isNarrow = matchMedia("(max-width: 799px)").matches;
    if (isNarrow && document.body.classList.contains("kv-side-open")) return side;
    return K.panel.covers() ? document.getElementById("kv-panel") : null;
  };
  const CONTROLS = "button, a[href], input, select, textarea, summary, [tabindex]";
  document.addEventListener("keydown", (event) => {
    const box = event.key === "Tab" ? covering() : null;
    if (!box?.contains(document.activeElement)) return;
    const all = [...box.querySelectorAll(CONTROLS)].filter((one) => one.tabIndex >= 0 && !one.disabled && one.checkVisibility());
    const last = event.shiftKey ? all[0] : all.at(-1);
    if (document.activeElement !== last) return;
    event.preventDefault();
    (event.shiftKey ? all.at(-1) : all[0]).focus();
  });
})();
