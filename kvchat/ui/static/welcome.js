// An empty chat: what to do, three questions to begin with, and what the model is doing meanwhile.
(() => {
  const K = window.kvchat;
  K.welcome = () => {
    const model = K.el("div", { class: "kv-welcome-model" }, K.el("p", { text: K.say("ui.welcome.loading") }), K.loadProgress());
    const notices = K.el("div", { class: "kv-notices" });
    // What is proposed has to work with the model that runs: one that knows English only is asked so.
    const words = (n) => K.say(K.status?.english_only ? `ui.sample.english.${n}` : `ui.sample.${n}`);
    const samples = [1, 2, 3].map((n) => K.el("button", { type: "button", class: "kv-sample", on: { click: () => K.fillIn(words(n)) } }, K.el("span")));
    const fill = () => samples.forEach((one, at) => {
      K.put(one.firstChild, words(at + 1));
      one.lang = K.status?.english_only ? "en" : K.lang;
    });
    fill();
    const drop = K.el("button", { type: "button", class: "kv-sample kv-sample-file", on: { click: () => K.chooseFiles() } }, K.icon("file"), K.el("span", { text: K.say("ui.welcome.drop") }));
    const box = K.el("section", { class: "kv-welcome", hidden: true },
      K.el("h1", { text: K.say("ui.welcome") }), K.el("p", { class: "kv-welcome-lead", text: K.say("ui.welcome.lead") }),
      K.el("div", { class: "kv-samples" }, ...samples, drop), model, notices);
    let known = false;
    const draw = () => {
      const empty = known && K.notes.turns.length === 0;
      K.show(box, empty);
      document.getElementById("kv-talk")?.classList.toggle("kv-empty", empty);
      const stage = K.frame?.runtime?.stage ?? K.status?.stage;
      K.show(model, stage === "loading");
      const error = K.status?.error;
      const said = [...(error ? [`${error.message} ${error.remedy}`] : []), ...(K.status?.notices ?? [])];
      if (notices.dataset.said === said.join("\n")) return;
      notices.dataset.said = said.join("\n");
      notices.replaceChildren(...said.map((text) => K.el("p", {}, K.icon("note"), K.el("span", { text }))));
    };
    K.on("notes", () => {
      known = true;
      draw();
    });
    K.on("chat", (chat) => {
      known = chat === null;
      if (known) K.notes = { ...K.notes, turns: [], live: null, problem: null, earlier: 0, chat: null };
      draw();
    });
    K.on("frame", draw);
    K.on("status", () => {
      fill();
      draw();
    });
    return box;
  };
})();
