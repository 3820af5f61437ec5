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
  K.drawUndo = () => document.querySelectorAll(".kv-undo").forEach(fill);

  const fill = (place) => {
    const entry = place.kvEntry === undefined ? newestCut() : entries.find((one) => one.number === place.kvEntry);
    const state = standing(entry);
    const key = `${entry?.number}/${state}`;
    if (place.kvKey === key) return;
    place.kvKey = key;
    place.replaceChildren(...(state ? [state === "asked" ? said(K.say("ui.undo.asked")) : begin(place, entry)] : []));
  };
  const said = (text) => K.el("span", { class: "kv-muted", text });
  const link = (code, press) => K.el("button", { type: "button", class: "kv-link", text: K.say(code), on: { click: press } });
  const begin = (place, entry) => {
    const button = link(entry.undo === "read_again" ? "ui.undo.read_again" : "ui.undo", () => weigh(place, entry));
    button.title = K.say(`undo.${entry.undo}`);
    return button;
  };
  const cost = ({ tokens, s }) => {
    if (!tokens) return K.say("ui.undo.free");
    return s === null ? K.say("ui.undo.cost", { tokens }) : K.say("ui.undo.cost.s", { tokens, s: K.seconds(s) });
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
