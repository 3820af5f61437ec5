// Taking back what was done to a chat: offered where the server says so, with what it costs first.
// The places are in the messages and in the list of actions; a place drawn anew is empty.
(() => {
  const K = window.kvchat;
  let entries = [];

  const standing = (entry) => {
    const { offered = [], asked = [] } = K.frame?.undo ?? {};
    if (!entry) return "";
    return asked.includes(entry.number) ? "asked" : offered.includes(entry.number) ? "offered" : "";
  };
  // The newest entry that leaves turns out tells of all of them: a divider in the chat is about that.
  const newestCut = () => entries.findLast((entry) => ["truncate_turns", "summarize"].includes(entry.code));
  K.undoPlace = (number) => {
    const place = K.el("span", { class: "kv-undo" });
    place.kvEntry = number;
    fill(place);
    return place;
  };
  // Of a turn: the newest entry about it that can be taken back, or was asked back.
  const newestOf = (name) => entries.findLast((entry) => standing(entry) && (entry.turns ?? []).includes(name));
  K.drawUndo = () => {
    mark();
    document.querySelectorAll(".kv-undo").forEach(fill);
  };
  // Messages that the model sees only in part, or in fewer bits, say so themselves, with the way back.
  // What is left out has its line below the last of them.
  const mark = () => {
    const marks = new Map((K.frame?.marks ?? []).map((one) => [one.turn, one]));
    for (const question of document.querySelectorAll("#kv-chat .kv-ask")) {
      const one = marks.get(Number(question.id.split("-").at(-1)));
      let place = question.querySelector(".kv-marks");
      const own = place?.querySelector(".kv-mark-own");
      const lossy = one && !one.left_out && (one.evicted || one.formats);
      if (!lossy) {
        if (own) (own.parentElement.dataset.own ? own.parentElement : own).remove();
        continue;
      }
      if (own) {
        K.put(own.firstChild, saidOf(one));
        continue;
      }
      if (!place) {
        place = K.el("div", { class: "kv-marks", "data-own": "true" });
        question.append(place);
      }
      const undo = K.el("span", { class: "kv-undo" });
      undo.kvTurn = one.name;
      place.append(K.el("span", { class: "kv-mark-own" }, K.el("span", { text: saidOf(one) }), " ", undo));
    }
  };
  const saidOf = (one) => (one.formats ? K.say("ui.mark.formats", { format: K.format(one.formats) }) : "");

  const entryOf = (place) => {
    if (place.kvTurn !== undefined) return newestOf(place.kvTurn);
    return place.kvEntry === undefined ? newestCut() : entries.find((one) => one.number === place.kvEntry);
  };
  const fill = (place) => {
    const entry = entryOf(place);
    const state = standing(entry);
    const found = known(entry);
    if (state === "offered" && (!found || isOld(found)) && place.offsetParent) ask(entry);
    const key = `${entry?.number}/${state}/${state === "offered" ? (known(entry)?.text ?? "") : ""}`;
    if (place.kvKey === key) return;
    place.kvKey = key;
    place.replaceChildren(...(state ? [state === "asked" ? said(K.say("ui.undo.asked")) : begin(place, entry)] : []));
  };
  const said = (text) => K.el("span", { class: "kv-muted", text });
  const link = (code, press) => K.el("button", { type: "button", class: "kv-link", text: K.say(code), on: { click: press } });
  const begin = (place, entry) => {
    const button = link(entry.undo === "read_again" ? "ui.undo.read_again" : "ui.undo", () => weigh(place, entry));
    button.title = K.say(`undo.${entry.undo}`);
    const found = known(entry);
    if (found?.text) button.append(K.el("span", { class: "kv-undo-cost", text: ` (${found.text})` }));
    return button;
  };
  const cost = ({ tokens, s }) => {
    if (!tokens) return K.say("ui.undo.free");
    return s === null ? K.say("ui.undo.cost", { tokens }) : K.say("ui.undo.cost.s", { tokens, s: K.seconds(s) });
  };

  // What it costs stands on the button before it is pressed. It is asked for once a turn and entry, and
  // again when something else fits, one after the other, for planning takes a moment; not while an
  // answer is made.
  const AGAIN_MS = 1000; // what others use moves what fits: not at every frame
  const costs = new Map();
  const room = () => JSON.stringify([K.frame?.device?.budget, K.frame?.fits]);
  const isOld = (found) => found.room !== room() && performance.now() - found.at > AGAIN_MS;
  const place = (entry) => `${K.chat}/${entry.number}/${K.notes.turns.length + K.notes.earlier}`;
  const known = (entry) => (entry ? costs.get(place(entry)) : undefined);
  let queue = Promise.resolve();
  let waiting = 0; // a few at a time; the rest when those are known
  const ask = (entry) => {
    if (K.notes.live || !K.online || waiting > 3) return;
    waiting += 1;
    const key = place(entry);
    const told = { text: costs.get(key)?.text ?? "", room: room(), at: performance.now() };
    costs.set(key, told);
    if (costs.size > 200) costs.delete(costs.keys().next().value);
    queue = queue.then(async () => {
      const found = await K.call("undo_cost", { chat: K.chat, entry: entry.number });
      waiting -= 1;
      if (found.error) {
        // why, is said in full when it is pressed
        told.text = found.error.code?.startsWith("undo_no_room") ? K.say("ui.undo.no_room") : "";
        return K.drawUndo();
      }
      const s = found.s === null || found.s === undefined ? "" : `, ${K.say("ui.about", { s: K.seconds(found.s) })}`;
      told.text = found.tokens ? K.say("ui.figures.tokens", { tokens: found.tokens }) + s : K.say("ui.undo.nothing_read");
      K.drawUndo();
    });
  };
  const leave = (place) => {
    place.kvKey = "";
    fill(place);
  };
  const refused = (place, error) => place.replaceChildren(said(`${error.message} ${error.remedy}`), link("ui.keep", () => leave(place)));
  const weigh = async (place, entry) => {
    const about = { chat: K.chat, entry: entry.number };
    const found = await K.call("undo_cost", about);
    if (found.error) return refused(place, found.error);
    const go = async () => {
      const done = await K.call("undo", about);
      if (done.error) refused(place, done.error);
      else place.replaceChildren(said(K.say("ui.undo.asked")));
    };
    const yes = link("ui.undo.yes", go);
    place.replaceChildren(said(cost(found)), yes, link("ui.keep", () => leave(place)));
    yes.focus();
  };

  K.on("entries", (list) => {
    entries = list;
    K.drawUndo();
  });
  for (const name of ["frame", "notes"]) K.on(name, () => K.drawUndo());
})();
