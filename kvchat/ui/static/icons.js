// Line icons, drawn here so that no font and no file is needed. 24 x 24, stroke only.
(() => {
  const PATHS = {
    plus: "M12 5v14M5 12h14",
    minus: "M5 12h14",
    search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
    pencil: "M4 20h4L19 9l-4-4L4 16zM13.5 6.5l4 4",
    trash: "M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
    copy: "M9 9h11v11H9zM5 15H4V4h11v1",
    check: "M5 12l5 5 9-10",
    again: "M20 11a8 8 0 0 0-14.9-3M4 5v4h4M4 13a8 8 0 0 0 14.9 3M20 19v-4h-4",
    left: "M14 6l-6 6 6 6",
    right: "M10 6l6 6-6 6",
    up: "M6 14l6-6 6 6",
    down: "M6 10l6 6 6-6",
    clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7L9.4 17a1.7 1.7 0 0 1-2.4-2.4L14.500 7",
    send: "M12 19V5M6 11l6-6 6 6",
    stop: "M7 7h10v10H7z",
    close: "M6 6l12 12M18 6L6 18",
    menu: "M4 7h16M4 12h16M4 17h16",
    panel: "M4 5h16v14H4zM14 5v14",
    tune: "M4 7h9M17 7h3M15 5v4M4 17h3M11 17h9M9 15v4M4 12h5M13 12h7M11 10v4",
    theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
    file: "M7 3h7l5 5v13H7zM14 3v5h5M10 13h6M10 17h6",
    note: "M12 8v5M12 16.500v.5M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
    pin: "M9 4h6l-1 6 3 3v2H7v-2l3-3zM12 15v5",
    pinned: "M9 4h6l-1 6 3 3v2H7v-2l3-3zM12 15v5M11 7h2M10.500 11h3M9 14h6",
    list: "M8 6h12M8 12h12M8 18h12M4 6h.01M4 12h.01M4 18h.01",
    save: "M12 4v11M7 11l5 5 5-5M5 20h14",
    import: "M12 16V5M7 9l5-5 5 5M5 20h14",
    keys: "M3 7h18v10H3zM7 11h.01M11 11h.01M15 11h.01M8 14h8",
  };
  const SVG = "http://www.w3.org/2000/svg";
  window.kvchat.icon = (name) => {
    const svg = document.createElementNS(SVG, "svg");
    for (const [key, value] of Object.entries({
      viewBox: "0 0 24 24",
      class: `kv-icon kv-icon-${name}`,
      "aria-hidden": "true",
    }))
      svg.setAttribute(key, value);
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", PATHS[name]);
    svg.append(path);
    return svg;
  };
})();
