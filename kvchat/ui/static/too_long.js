// A text that is far longer than what fits is told of before it is sent, in one quiet line. Estimated
// here, when the writing rests, from what this model's tokens hold; what is sent is counted exactly.
(() => {
  const K = window.kvchat;
  const REST_MS = 400;
  const FAR = 2; // times what fits: an estimate by letters alone is never that far off

  // A single question is never stored in less, as older turns are: it must fit as it is computed.
  // Of code, numbers and other scripts a token holds less than of plain text: more than this, not less.
  const tokensOf = (text) => {
    const { hangul_per_token: hangul, letters_per_token: letters } = K.frame ?? {};
    if (!letters) return 0;
    const syllables = hangul ? (text.match(/[가-힣]/g)?.length ?? 0) : 0;
    const rest = text.replace(/\s+/g, " ").length - syllables;
    return syllables / (hangul || 1) + Math.max(0, rest) / letters;
  };

  K.tooLong = (box) => {
    const line = K.el("p", { class: "kv-hint kv-too-long", role: "status", hidden: true });
    const look = () => {
      const most = K.frame?.fits?.in_steps_tokens ?? K.frame?.kv?.capacity_tokens ?? 0;
      const tokens = most ? tokensOf(box.value) : 0;
      const isFar = tokens > FAR * most;
      if (isFar) K.put(line, K.say("ui.too_long", { tokens: K.roughly(tokens), most }));
      K.show(line, isFar);
    };
    let later = 0;
    const rest = () => {
      clearTimeout(later);
      later = setTimeout(look, REST_MS);
    };
    box.addEventListener("input", rest);
    K.on("typed", rest);
    return line;
  };
})();
