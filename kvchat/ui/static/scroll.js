// Where the conversation is scrolled to: at its end, as long as nobody scrolls up to read.
(() => {
  const K = window.kvchat;
  const NEAR = 60; // pixels from the end that count as the end
  const log = () => document.querySelector("#kv-chat [role=log]");
  let atEnd = true;
  let hold = { until: 0, fromEnd: 0 };
  let touched = 0;

  K.settle = () => {
    const box = log();
    if (!box) return;
    if (performance.now() < hold.until && hold.place) hold.place.scrollIntoView({ block: "center" });
    else if (performance.now() < hold.until && hold.at) hold.at();
    else if (performance.now() < hold.until) box.scrollTop = box.scrollHeight - hold.fromEnd;
    else if (atEnd) box.scrollTop = box.scrollHeight;
  };
  K.follow = () => {
    atEnd = true;
    hold.until = 0;
    K.settle();
  };
  // Earlier turns are added above; what is being read stays where it is.
  K.holdPlace = () => {
    atEnd = false;
    hold = { until: performance.now() + 1500, fromEnd: log().scrollHeight - log().scrollTop };
  };
  K.on("chat", K.follow);

  // A message that was searched for: shown in the middle once it is drawn, and marked for a moment.
  let sought = null;
  K.lookFor = (turn, role) => {
    sought = { chat: K.chat, turn, role, until: performance.now() + 8000 };
    show();
  };
  const show = () => {
    if (!sought || sought.chat !== K.chat || performance.now() > sought.until) return (sought = null);
    const ask = document.getElementById(`kv-ask-${sought.turn}`);
    const place = sought.role === "user" ? ask : document.getElementById(`kv-foot-${sought.turn}`)?.previousElementSibling;
    if (!place || K.notes.chat !== K.chat) return setTimeout(show, 60);
    sought = null;
    atEnd = false;
    hold = { until: performance.now() + 1500, place };
    for (const again of [0, 150, 400, 800]) setTimeout(K.settle, again); // what comes into view gets its true height only then
    place.classList.add("kv-sought");
    setTimeout(() => place.classList.remove("kv-sought"), 2500);
  };

  // The page is drawn anew in another language: the question that is read stays where it is.
  const PLACE = "kvchat.place";
  const top = (element) => element.getBoundingClientRect().top - log().getBoundingClientRect().top;
  K.keepPlace = () => {
    const questions = [...document.querySelectorAll("#kv-chat .kv-ask")];
    const first = questions.find((one) => top(one) > -one.offsetHeight) ?? questions.at(-1);
    K.keep(PLACE, atEnd || !first ? null : { chat: K.chat, shown: K.shown, id: first.id, top: top(first) });
  };
  const back = K.kept(PLACE);
  K.keep(PLACE, null);
  if (back?.chat && back.chat === K.chat) {
    K.shown = back.shown;
    atEnd = false;
    const at = () => {
      const question = document.getElementById(back.id);
      if (!question) return;
      log().scrollTop += top(question) - back.top;
      hold.until = Math.min(hold.until, performance.now() + 1500);
    };
    hold = { until: performance.now() + 8000, at };
  }

  // Only a person takes the view away from the end; text that grows does not. It is left at once, for
  // browsers glide: a next piece of text would call the view back before it has moved.
  const UP_KEYS = ["PageUp", "Home", "ArrowUp"];
  const leave = (event) => {
    touched = performance.now();
    const up = event.type === "touchmove" || event.deltaY < 0 || UP_KEYS.includes(event.key);
    if (!up || log().scrollTop === 0) return;
    atEnd = false;
    hold.until = 0;
  };
  const isNear = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
  // The browser has brought what has the focus into sight: it is not scrolled away again.
  const focused = ({ target }) => {
    if (!target.matches(":focus-visible") || isNear(log())) return;
    atEnd = false;
    hold.until = 0;
  };
  const scrolled = (event) => {
    if (performance.now() < hold.until) return; // it was not a person who scrolled
    const near = isNear(log());
    const recent = performance.now() - touched < 400;
    if (near && (event.type === "scrollend" || !recent)) atEnd = true;
    else if (!near && recent) atEnd = false;
  };
  const watch = () => {
    const box = log();
    if (!box) return setTimeout(watch, 50);
    for (const name of ["wheel", "touchmove", "keydown", "pointerdown"]) box.addEventListener(name, leave, { passive: true });
    box.addEventListener("focusin", focused);
    for (const name of ["scroll", "scrollend"]) box.addEventListener(name, scrolled, { passive: true });
    const sizes = new ResizeObserver(K.settle);
    sizes.observe(box);
    const wrap = new MutationObserver(() => {
      const inner = box.querySelector(".message-wrap");
      if (inner) sizes.observe(inner);
    });
    wrap.observe(box, { childList: true });
  };
  watch();
})();
