// The line at the top: which model, what it is doing, language, light or dark, and the panels.
(() => {
  const K = window.kvchat;
  let status = { stage: "loading", model: "", notices: [], error: null };
  let online = true;

  K.draw.top = (box) => {
    const name = K.el("span", { class: "kv-model-name" });
    const dot = K.el("span", { class: "kv-dot", "aria-hidden": "true" });
    const words = K.el("span", { class: "kv-pill-words", role: "status" });
    const again = K.el("button", { type: "button", class: "kv-link kv-reconnect", text: K.say("ui.reconnect"), hidden: true, on: { click: K.reconnect } });
    const pill = K.el("span", { class: "kv-pill" }, dot, words, again);
    const other = K.lang === "ko" ? "en" : "ko";
    const language = K.el("a", {
      class: "kv-ghost kv-language",
      lang: other,
      hreflang: other,
      text: K.say("ui.other_language"),
    });
    language.addEventListener("click", () => {
      language.href = `/${other}/${K.chat ? `?c=${encodeURIComponent(K.chat)}` : ""}`;
      K.keepPlace();
    });
    language.href = `/${other}/`;
    box.append(
      K.el("header", { class: "kv-top" },
        K.button("ui.chats", "menu", () => K.showSide(!document.body.classList.contains("kv-side-open")), { class: "kv-ghost kv-only-narrow", "aria-expanded": "false" }),
        K.el("span", { class: "kv-brand", text: "kvchat" }),
        name,
        pill,
        K.el("span", { class: "kv-space" }),
        language,
        K.button("ui.theme", "theme", () => K.setTheme(K.isDark() ? "light" : "dark"), { class: "kv-ghost" }),
        K.button("ui.panel", "panel", () => K.panel.toggle(), { class: "kv-ghost", id: "kv-panel-button" }),
        K.el("button", { type: "button", class: "kv-ghost kv-settings-button", title: K.say("ui.settings.title"), "aria-label": K.say("ui.settings.title"), on: { click: () => K.panel.toggle("settings") } },
          K.icon("tune"), K.el("span", { text: K.say("ui.settings") }), K.el("kbd", { text: "Ctrl ." }))
      )
    );
    const draw = () => {
      const stage = online ? (K.frame?.runtime?.stage ?? status.stage) : "offline";
      if (pill.dataset.stage !== stage) pill.dataset.stage = stage;
      K.put(name, status.model || "");
      name.title = (status.attention ?? []).join("\n");
      K.put(words, describe(stage));
      K.show(again, stage === "offline");
      words.title = stage === "offline" ? K.say("ui.offline.remedy") : "";
    };
    K.on("frame", draw);
    K.on("status", draw);
    K.on("online", (is) => {
      online = is;
      draw();
    });
    draw();
  };

  const describe = (stage) => {
    if (stage === "offline") return K.say("ui.offline");
    if (stage === "error") return status.error?.message || K.say("ui.stage.error");
    if (stage !== "loading") return K.say(`ui.stage.${stage}`);
    const load = K.frame?.runtime?.load ?? status.load ?? {};
    const step = load.stage ?? "weights";
    const part = load.of ? K.say("ui.load.part", { done: K.size(load.bytes ?? 0), of: K.size(load.of) }) : "";
    return [K.say(`ui.load.${step}`), part, load.s ? K.seconds(load.s) : ""].filter(Boolean).join(" · ");
  };

  // The model's name, its notices and errors are not in the frame: asked for when the stage changes,
  // and when more is known of its formats.
  let stage = null;
  let formats = null;
  const ask = async () => {
    const found = await K.call("status");
    if (found.stage === undefined) return;
    status = K.status = found;
    K.emit("status", status);
  };
  K.on("frame", (frame) => {
    const now = frame.runtime?.stage;
    const settled = ["loading", "error"].includes(stage) !== ["loading", "error"].includes(now);
    const known = frame.formats?.stage ?? null;
    if (stage === null || settled || known !== formats) ask();
    stage = now;
    formats = known;
  });
  ask();
})();
