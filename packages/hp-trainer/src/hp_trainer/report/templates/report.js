// SPDX-License-Identifier: Apache-2.0
"use strict";
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 560px)");
  const touch = matchMedia("(pointer: coarse)");
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll("[data-figure]")];
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  // Figures name colours by role (--train); the theme says what they are.
  function colored(value, style) {
    if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    if (Array.isArray(value)) return value.map((item) => colored(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, colored(item, style)]));
    }
    return value;
  }

  function layoutOf(layout, style) {
    const color = (role) => style.getPropertyValue(role).trim();
    const axis = { gridcolor: color("--grid"), zerolinecolor: color("--line"), linecolor: color("--line"), zeroline: false };
    const family = getComputedStyle(document.body).fontFamily;
    const title = { font: { size: 12, color: color("--muted") }, standoff: 6 };
    return {
      ...layout,
      autosize: true,
      margin: { l: 8, r: 22, t: 8, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family, size: 12, color: color("--muted") },
      showlegend: false,
      hovermode: "x unified",
      hoverlabel: { bgcolor: color("--card"), bordercolor: color("--line"), font: { family, color: color("--ink"), size: 12 } },
      dragmode: touch.matches ? false : "zoom",
      xaxis: {
        ...axis, automargin: true, showgrid: false, showline: true, ticks: "outside", ticklen: 4, tickcolor: color("--line"),
        nticks: narrow.matches ? 6 : 10, ...layout.xaxis, title: { ...layout.xaxis.title, ...title },
        showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "solid", spikecolor: color("--line"),
      },
      yaxis: { ...axis, automargin: true, nticks: 6, fixedrange: true, ticklabelstandoff: 4, ...layout.yaxis },
    };
  }

  // Plotly's own `responsive` listens to the window only, and late; what a chart must fit is its card. What is done in
  // the observer is seen in the same frame: no picture, however early, shows a chart of the old size.
  const drawn = new WeakMap();
  const sizeOf = (plot) => `${plot.clientWidth}x${plot.clientHeight}`;
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (!target.clientWidth || drawn.get(target) === sizeOf(target)) continue;
      drawn.set(target, sizeOf(target));
      Plotly.relayout(target, { autosize: true });
    }
  });

  function draw() {
    if (typeof Plotly === "undefined") return;
    const style = getComputedStyle(root);
    for (const plot of plots) {
      const figure = figures[plot.dataset.figure];
      drawn.set(plot, sizeOf(plot));
      Plotly.react(plot, colored(figure.data, style), layoutOf(figure.layout, style), { displayModeBar: false });
      observer.observe(plot);
    }
  }

  const button = document.getElementById("theme");
  function themed() {
    button.textContent = isDark() ? "Light theme" : "Dark theme";
    draw();
  }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    themed();
  });
  system.addEventListener("change", themed);
  narrow.addEventListener("change", draw);
  // Charts cannot be drawn again once the browser has laid out its paper, so they are drawn before, light and at the
  // width that the style sheet gives the page on paper.
  let screenTheme;
  addEventListener("beforeprint", () => {
    for (const section of document.querySelectorAll("details:not(.steps)")) section.open = true;
    screenTheme = root.dataset.theme;
    root.dataset.theme = "light";
    root.classList.add("paper");
    draw();
  });
  addEventListener("afterprint", () => {
    root.classList.remove("paper");
    if (screenTheme) root.dataset.theme = screenTheme;
    else delete root.dataset.theme;
    draw();
  });

  const copy = document.getElementById("copy");
  if (navigator.clipboard) {
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById("command").textContent);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
  }

  // A zoom along the steps holds for all charts, so that a spike can be looked at in each of them.
  let following = false;
  themed();
  for (const plot of plots) {
    plot.on?.("plotly_relayout", (change) => {
      const low = change["xaxis.range[0]"], high = change["xaxis.range[1]"];
      if (following || (low === undefined && !change["xaxis.autorange"])) return;
      following = true;
      const all = plots.map((other) => {
        const whole = figures[other.dataset.figure].layout.xaxis.range;
        const range = low === undefined ? whole : [low, high];
        return Plotly.relayout(other, { "xaxis.range": [...range], "xaxis.dtick": figures[other.dataset.figure].layout.xaxis.dtick ?? null });
      });
      Promise.all(all).finally(() => (following = false));
    });
  }
})();
