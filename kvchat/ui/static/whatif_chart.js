// The picture of the calculator: bytes in all against the length of a text, a line a pair of formats,
// with the room as a line across, and how far the chosen pair goes. Drawn here, nothing is fetched.
(() => {
  const K = window.kvchat;
  const WIDTH = 376; // where it is drawn before its place is seen
  const HEIGHT = 236;
  const LEFT = 58;
  const RIGHT = 10;
  const TOP = 22; // above it the name of the axis
  const BELOW = 34; // lengths, and what they are
  const UNITS = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

  // Round numbers from 0 up to the most, a handful of them: steps of 1, 2 or 5 times a power of ten.
  const rounds = (most, num) => {
    const rough = most / num;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((one) => one * power >= rough) * power;
    return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, n) => n * step);
  };
  const sizes = (top) => {
    const [unit, name] = UNITS.find(([bytes]) => top >= 2 * bytes) ?? UNITS.at(-1);
    const found = rounds(top / unit, 5);
    const digits = found[1] < 1 ? Math.ceil(-Math.log10(found[1])) : 0;
    return found.map((count) => [count * unit, count ? `${K.number(count, digits)} ${name}` : "0"]);
  };

  // What a line has at a place between its points.
  const between = (places, values, place) => {
    const after = Math.max(1, places.findIndex((one) => one >= place));
    const share = (place - places[after - 1]) / (places[after] - places[after - 1]);
    return values[after - 1] + share * (values[after] - values[after - 1]);
  };

  // `found`: what Python computed; `seen`: how wide its place is, so that letters are as large as elsewhere.
  K.whatifChart = (found, seen) => {
    const width = seen || WIDTH;
    const { room, context, chart } = found;
    const most = chart.contexts.at(-1);
    const highest = Math.max(...chart.lines.map((line) => line.bytes.at(-1)));
    // a card that holds far more than is asked for would press the lines to the ground
    const isFar = room.usable_bytes > 2 * highest;
    const top = isFar ? highest * 1.25 : Math.max(room.usable_bytes * 1.15, Math.min(highest, room.usable_bytes * 2.2));
    const [right, ground] = [width - RIGHT, HEIGHT - BELOW];
    const x = (tokens) => LEFT + ((right - LEFT) * tokens) / most;
    const y = (bytes) => ground - (ground - TOP) * (bytes / top);
    const text = (words, about) => K.svg("text", about, words);
    const beside = (tokens) => (x(tokens) > (LEFT + right) / 2 ? { x: x(tokens) - 5, "text-anchor": "end" } : { x: x(tokens) + 5 });

    const clip = K.svg("clipPath", { id: "kv-if-clip" }, K.svg("rect", { x: LEFT, y: TOP, width: right - LEFT, height: ground - TOP }));
    const grid = sizes(top).flatMap(([bytes, words]) => [K.svg("line", { class: "kv-grid", x1: LEFT, x2: right, y1: y(bytes), y2: y(bytes) }), text(words, { x: LEFT - 6, y: y(bytes) + 4, "text-anchor": "end" })]);
    const lengths = rounds(most, 5).map((tokens) => text(K.number(tokens), { x: Math.min(x(tokens), right - 8), y: ground + 14, "text-anchor": "middle" }));
    const names = [text(K.say("ui.whatif.axis.bytes"), { x: 0, y: 11 }), text(K.say("ui.whatif.axis.tokens"), { x: right, y: HEIGHT - 4, "text-anchor": "end" })];
    const lines = chart.lines.map((line, at) => {
      const points = chart.contexts.map((tokens, n) => `${x(tokens).toFixed(1)},${y(line.bytes[n]).toFixed(1)}`).join(" ");
      return K.svg("polyline", { class: `kv-line kv-l${at}`, points, "clip-path": "url(#kv-if-clip)" }, K.svg("title", {}, K.format(line.pair)));
    });
    const limit = isFar ? TOP : y(room.usable_bytes);
    // words stand where no line is: under the room where all lines are over it, else at the left above it
    const isOver = Math.min(...chart.lines.map((line) => line.bytes[0])) > room.usable_bytes;
    const isLeft = isOver || limit > TOP + 34 || x(context) > LEFT + 150;
    const card = [K.svg("line", { class: "kv-card-line", x1: LEFT, x2: right, y1: limit, y2: limit }), text(K.say(isFar ? "ui.whatif.card.far" : "ui.whatif.card.line", { usable: K.size(room.usable_bytes) }), { class: "kv-card-text", ...(isLeft ? { x: LEFT + 6 } : { x: right, "text-anchor": "end" }), y: isFar || isOver ? limit + 13 : limit - 5 })];
    const asked = context <= most ? [K.svg("line", { class: "kv-context-line", x1: x(context), x2: x(context), y1: TOP, y2: ground }), text(K.say("ui.whatif.axis.asked"), { ...beside(context), y: isOver ? ground - 6 : isFar ? TOP + 28 : TOP + 10 })] : [];
    const longest = found.rows.find((row) => `${row.key_format}/${row.value_format}` === found.pair)?.largest_context;
    const own = chart.lines.find((line) => line.pair === found.pair);
    const tall = own && longest ? Math.min(room.usable_bytes, between(chart.contexts, own.bytes, longest)) : room.usable_bytes;
    const peak = Math.max(TOP, y(tall));
    const reach = longest > 0 && longest <= most ? [K.svg("line", { class: "kv-reach-line", x1: x(longest), x2: x(longest), y1: peak, y2: ground }), K.svg("circle", { class: "kv-reach", cx: x(longest), cy: peak, r: 3.5 }), text(K.say("ui.whatif.axis.most", { tokens: longest, format: K.format(found.pair) }), { class: "kv-reach-text", ...beside(longest), y: ground - 6 })] : [];
    const label = K.say("ui.whatif.chart", { most, usable: K.size(room.usable_bytes) });
    return K.svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label }, clip, ...grid, ...lengths, ...names, ...lines, ...asked, ...card, ...reach);
  };
})();
