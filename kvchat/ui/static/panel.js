// The panel at the right: documents, turns, what was done, settings. One tab at a time.
(() => {
  const K = window.kvchat;
  const TABS = ["documents", "turns", "ledger", "settings"];
  const bodies = {};
  let shown = "documents";

  K.panel = {
    fill: {}, // tab -> function that draws into its body once
    open: (tab) => set(true, tab),
    close: () => set(false),
    toggle: (tab) => set(!(isOpen() && (!tab || tab === shown)), tab),
    isOpen: (tab) => isOpen() && (!tab || tab === shown),
  };
  const isOpen = () => document.body.classList.contains("kv-panel-open");
  const set = (open, tab) => {
    document.body.classList.toggle("kv-panel-open", open);
    document.getElementById("kv-panel-button")?.setAttribute("aria-pressed", String(open));
    if (tab) shown = tab;
    for (const name of TABS) {
      const button = document.getElementById(`kv-tab-${name}`);
      button?.setAttribute("aria-selected", String(name === shown));
      button?.setAttribute("tabindex", name === shown ? "0" : "-1");
      if (bodies[name]) K.show(bodies[name], name === shown);
    }
    if (open) K.emit("panel", shown);
  };

  K.draw.panel = (box) => {
    const tabs = K.el("div", { class: "kv-tabs", role: "tablist", "aria-label": K.say("ui.panel") });
    const aside = K.el("aside", { class: "kv-panel", "aria-label": K.say("ui.panel") },
      K.el("div", { class: "kv-panel-head" }, tabs, K.button("ui.close", "close", K.panel.close, { class: "kv-ghost" })));
    for (const name of TABS) {
      tabs.append(K.el("button", { type: "button", role: "tab", id: `kv-tab-${name}`, "aria-controls": `kv-body-${name}`, text: K.say(`ui.tab.${name}`), on: { click: () => set(true, name) } }));
      bodies[name] = K.el("div", { class: `kv-panel-body kv-panel-${name}`, id: `kv-body-${name}`, role: "tabpanel", "aria-labelledby": `kv-tab-${name}`, hidden: true });
      aside.append(bodies[name]);
      K.panel.fill[name](bodies[name]);
    }
    tabs.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = TABS[(TABS.indexOf(shown) + step + TABS.length) % TABS.length];
      set(true, next);
      document.getElementById(`kv-tab-${next}`).focus();
    });
    box.append(aside);
    set(false, shown);
  };
})();
