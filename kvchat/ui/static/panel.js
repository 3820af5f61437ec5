// The panel at the right, one tab at a time. A script of its own adds a tab, before or after the panel stands:
//
//   K.panel.tab("whatif", 50, (body) => body.append(...));   // its name on the tab: the words `ui.tab.whatif`
//   K.panel.onShow("whatif", () => ...);                     // each time when it comes into sight
//   if (!K.panel.isOpen("whatif")) return;                   // what nobody sees need not be drawn
//
// Places in use: documents 10, turns 20, ledger 30, models 40, whatif 50, settings 90.
(() => {
  const K = window.kvchat;
  const tabs = []; // {name, place, fill, button, body}, from left to right
  const shows = new Map(); // name -> what to call when it comes into sight
  // Open on the same tab after a reload, and in the other language
  const KEPT = "kvchat.panel";
  let shown = K.kept(KEPT)?.tab ?? "documents";
  let row = null; // the buttons
  let aside = null;

  K.panel = {
    tab: (name, place, fill) => {
      tabs.push({ name, place, fill, button: null, body: null });
      tabs.sort((a, b) => a.place - b.place);
      if (aside) stand();
    },
    onShow: (name, call) => shows.set(name, [...(shows.get(name) ?? []), call]),
    open: (tab) => turn(true, tab),
    close: () => turn(false),
    toggle: (tab) => turn(!(isOpen() && (!tab || tab === shown)), tab),
    covers: () => isOpen() && Boolean(aside) && aside.offsetWidth >= innerWidth - 1,
    isOpen: (tab) => isOpen() && (!tab || tab === shown),
  };
  // The focus goes where it can be seen: into a panel that covers all else, and out of one that closes.
  const turn = (open, name) => {
    const wasInside = Boolean(aside?.contains(document.activeElement));
    set(open, name);
    if (!open && wasInside) document.getElementById("kv-panel-button")?.focus();
    if (open && !wasInside && K.panel.covers()) tabs.find((tab) => tab.name === shown)?.button?.focus();
  };
  const isOpen = () => document.body.classList.contains("kv-panel-open");
  const set = (open, name) => {
    document.body.classList.toggle("kv-panel-open", open);
    document.getElementById("kv-panel-button")?.setAttribute("aria-pressed", String(open));
    if (name) shown = name;
    K.keep(KEPT, { open, tab: shown });
    for (const tab of tabs) {
      const here = tab.name === shown;
      tab.button?.setAttribute("aria-selected", String(here));
      tab.button?.setAttribute("tabindex", here ? "0" : "-1");
      if (tab.body) K.show(tab.body, here);
      if (here && open) tab.button?.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    if (!open) return;
    for (const call of shows.get(shown) ?? []) call();
    K.emit("panel", shown);
  };

  // Each tab that has no button yet gets one, at its place, and its body is filled.
  const stand = () => {
    tabs.forEach((tab, at) => {
      if (tab.button) return;
      const { name } = tab;
      tab.button = K.el("button", { type: "button", role: "tab", id: `kv-tab-${name}`, "aria-controls": `kv-body-${name}`, text: K.say(`ui.tab.${name}`), on: { click: () => set(true, name) } });
      tab.body = K.el("div", { class: `kv-panel-body kv-panel-${name}`, id: `kv-body-${name}`, role: "tabpanel", tabindex: "0", "aria-labelledby": `kv-tab-${name}`, hidden: true });
      row.insertBefore(tab.button, row.children[at] ?? null);
      aside.append(tab.body);
      try {
        tab.fill(tab.body);
      } catch (error) {
        reportError(error); // one tab is broken, and the others stand
      }
    });
    set(isOpen(), shown);
  };

  K.draw.panel = (box) => {
    row = K.el("div", { class: "kv-tabs", role: "tablist", "aria-label": K.say("ui.panel") });
    aside = K.el("aside", { class: "kv-panel", "aria-label": K.say("ui.panel") },
      K.el("div", { class: "kv-panel-head" }, row, K.button("ui.close", "close", K.panel.close, { class: "kv-ghost" })));
    row.addEventListener("keydown", (event) => {
      const at = tabs.findIndex((tab) => tab.name === shown);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = tabs[(to + tabs.length) % tabs.length];
      set(true, next.name);
      next.button.focus();
    });
    box.append(aside);
    document.body.classList.toggle("kv-panel-open", Boolean(K.kept(KEPT)?.open));
    stand();
  };
})();
