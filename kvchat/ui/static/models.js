// The models: which one runs, which there are, how each would fit, and changing to another.
(() => {
  const K = window.kvchat;
  let body, runs, said, room, here, rest, folders;

  // What models and texts have to fit into, and what it comes from
  K.roomOf = ({ budget_bytes: budget, total_bytes: total, headroom_bytes: headroom, others_bytes: others }) => {
    if (budget !== null) return K.say("ui.whatif.room.budget", { budget: K.size(budget) });
    return K.say(others ? "ui.whatif.room.others" : "ui.whatif.room", { total: K.size(total), headroom: K.size(headroom), others: K.size(others) });
  };

  // How far a loading is, with the way to call it off; nothing where none is under way
  K.loadProgress = () => {
    const words = K.el("span", { class: "kv-load-words", role: "status" });
    const fill = K.el("i");
    const cancel = K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.cancel"), on: { click: () => K.call("cancel_load") } });
    const element = K.el("div", { class: "kv-load", hidden: true }, K.el("div", { class: "kv-load-line" }, words, cancel), K.el("span", { class: "kv-progress", role: "progressbar", "aria-label": K.say("ui.stage.loading") }, fill));
    const draw = () => {
      const { stage, load = {} } = K.frame?.runtime ?? {};
      K.show(element, stage === "loading");
      if (stage !== "loading") return;
      K.show(cancel, load.stage !== "prepare"); // that is not called off any more
      const step = K.say(`ui.load.${load.stage ?? "start"}`);
      const part = load.of ? K.say("ui.load.part", { done: K.size(load.bytes ?? 0), of: K.size(load.of) }) : "";
      K.put(words, [step, part, load.s ? K.seconds(load.s) : ""].filter(Boolean).join(" · "));
      const share = load.of ? Math.round((100 * load.bytes) / load.of) : 0;
      fill.classList.toggle("kv-unknown", !load.of);
      fill.style.width = load.of ? `${share}%` : "";
      fill.parentElement.setAttribute("aria-valuenow", String(share));
    };
    K.on("frame", draw);
    draw();
    return element;
  };

  K.panel.tab("models", 40, (element) => {
    body = element;
    runs = K.el("div", { class: "kv-runs" });
    said = K.el("p", { class: "kv-said kv-wrong", role: "alert" });
    room = K.el("p", { class: "kv-help kv-models-room" });
    here = K.el("div", { class: "kv-models" });
    rest = K.el("div", { class: "kv-models" });
    folders = K.el("div", { class: "kv-folders" });
    body.append(runs, K.loadProgress(), said, room, title("ui.models.here"), here, adding(), folders, title("ui.models.catalog"), K.el("p", { class: "kv-help", text: K.say("ui.models.catalog.help") }), rest);
  });
  const title = (code) => K.el("h3", { class: "kv-set-title", text: K.say(code) });
  K.panel.onShow("models", () => load());
  K.on("status", () => {
    if (body && K.panel.isOpen("models")) load();
  });
  const tell = (problem) => K.put(said, problem ? `${problem.message} ${problem.remedy}` : "");

  let newest = 0;
  const load = async () => {
    const turn = ++newest;
    if (!runs.firstChild) runs.append(K.el("p", { class: "kv-hint", role: "status", text: K.say("ui.models.counting") }));
    const found = await K.call("models");
    if (turn !== newest) return;
    if (!found.models) {
      runs.replaceChildren();
      return tell(found.error);
    }
    if (found.refused?.message === found.why?.message) found.why = null; // said once
    drawRuns(found);
    tell(found.refused);
    K.put(room, K.roomOf(found.room));
    const local = found.models.filter((one) => one.ref !== null);
    here.replaceChildren(...local.map((one) => row(one, found)));
    rest.replaceChildren(...found.models.filter((one) => one.ref === null).map((one) => row(one, found)));
    folders.replaceChildren(K.el("p", { class: "kv-help", text: K.say("ui.models.folder", { folder: found.folder }) }), ...found.folders.map(folder));
    for (const one of local) {
      const answer = await K.call("model_ways", { model: one.ref });
      if (turn !== newest) return;
      const place = [...here.children].find((element) => element.kvRef === one.ref);
      place?.querySelector(".kv-ways").replaceChildren(...ways(answer, one, found));
    }
  };
  const precision = (way) => K.say(way.weights === "int8" ? "ui.models.int8" : "ui.models.as_is", { dtype: way.dtype });
  const drawRuns = (found) => {
    const running = found.models.find((one) => one.ref === found.running);
    const parts = found.running
      ? [K.el("div", { class: "kv-runs-words" }, K.el("strong", { text: running?.name ?? found.running }), K.el("span", { class: "kv-muted", text: K.say("ui.models.running", { precision: precision({ dtype: found.dtype, weights: found.weights }) }) })),
          K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.models.unload"), title: K.say("ui.models.unload.help"), on: { click: (event) => act(event.currentTarget, "unload_model") } })]
      : [K.el("div", { class: "kv-runs-words" }, K.el("strong", { text: K.say(found.stage === "loading" ? "ui.stage.loading" : "ui.models.none") }), found.why && K.el("span", { class: "kv-muted", text: `${found.why.message} ${found.why.remedy}` }))];
    runs.replaceChildren(...parts);
  };
  const act = async (button, name, sent = {}) => {
    button.disabled = true;
    tell(null);
    const answer = await K.call(name, sent);
    button.disabled = false;
    if (answer.error) {
      tell(answer.error);
      said.scrollIntoView({ block: "nearest" });
    }
    return !answer.error;
  };

  // Korean counts in hundreds of millions
  const counted = (number) => (K.lang === "ko" ? K.number(number / 1e8, number < 1e9 ? 1 : 0) : K.number(number / 1e9, number < 1e10 ? 1 : 0));
  const row = (one, found) => {
    const korean = one.serves_korean === null ? "unknown" : one.serves_korean ? "yes" : "no";
    const facts = [one.parameters ? K.say("ui.models.parameters", { count: counted(one.parameters) }) : "", one.licence].filter(Boolean);
    const element = K.el("article", { class: `kv-model${one.ref !== null && one.ref === found.running ? " kv-here" : ""}`, "aria-label": one.name },
      K.el("div", { class: "kv-model-head" }, K.el("strong", { text: one.name }), K.el("span", { class: `kv-badge kv-korean-${korean}`, text: K.say(`ui.models.korean.${korean}`) })),
      facts.length ? K.el("div", { class: "kv-help", text: facts.join(" · ") }) : null,
      one.ref && one.ref !== one.name && one.ref.includes("/") ? K.el("div", { class: "kv-help kv-path", text: one.ref }) : null,
      K.el("ul", { class: "kv-ways" }, ...(one.ways ? ways(one, one, found) : [K.el("li", { class: "kv-muted", text: K.say("ui.models.counting") })])));
    element.kvRef = one.ref;
    return element;
  };
  // Each precision in a line: what it takes, how long a text fits, or what it lacks
  const ways = (answer, one, found) => {
    if (answer.problem || answer.error) {
      const problem = answer.problem ?? answer.error;
      return [K.el("li", { class: "kv-wrong", text: `${problem.message} ${problem.remedy}` })];
    }
    const fitting = answer.ways.filter((way) => way.fits);
    const shown = one.ref === null ? (fitting.length ? fitting.slice(0, 1) : answer.ways.slice(-1)) : answer.ways;
    return shown.map((way) => {
      const words = way.fits ? [K.fitsSaid(way.longest), way.hoped_tokens ? K.say("fits.hoped", { most: way.hoped_tokens }) : ""].filter(Boolean).join(" · ") : K.say("ui.models.short", { size: K.size(way.short_by_bytes) });
      const isRunning = one.ref === found.running && way.dtype === found.dtype && way.weights === found.weights;
      const line = K.el("li", { class: way.fits ? "kv-fits" : "kv-short" }, K.icon(way.fits ? "check" : "close"), K.el("div", { class: "kv-way" }, K.el("span", { text: `${precision(way)} · ${K.size(way.weight_bytes)}` }), K.el("span", { class: "kv-muted", text: words })));
      if (one.ref !== null)
        line.append(isRunning ? K.el("span", { class: "kv-badge", text: K.say("ui.models.runs") })
          : K.el("button", { type: "button", class: "kv-plain kv-load-this", text: K.say("ui.models.load"), "aria-label": K.say("ui.models.load.of", { name: one.name, precision: precision(way) }), on: { click: (event) => act(event.currentTarget, "load_model", { model: one.ref, dtype: way.dtype, weights: way.weights }) } }));
      return line;
    });
  };

  const adding = () => {
    const path = K.el("input", { class: "kv-input", id: "kv-add-folder", placeholder: K.say("ui.models.add.hint"), autocomplete: "off", spellcheck: "false" });
    const add = async (event) => {
      event.preventDefault();
      if (!path.value.trim()) return;
      if (await act(button, "add_folder", { path: path.value })) {
        path.value = "";
        load();
      }
    };
    const button = K.el("button", { type: "submit", class: "kv-plain", text: K.say("ui.models.add") });
    return K.el("form", { class: "kv-add", on: { submit: add } }, K.el("label", { class: "kv-only-heard", for: "kv-add-folder", text: K.say("ui.models.add.label") }), path, button);
  };
  const folder = (path) => K.el("div", { class: "kv-folder" }, K.el("span", { class: "kv-path", text: path }), K.button("ui.models.forget", "close", async (event) => {
    if (await act(event.currentTarget, "forget_folder", { path })) load();
  }, { class: "kv-tool" }));
})();
