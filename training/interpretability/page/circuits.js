// What heads do with any text: their scores, and how they compose.
const circuits = (() => {
  const host = document.getElementById("circuits-body");
  const MEANING = {
    "previous token": "attention to the token before",
    "duplicate token": "attention to earlier copies of the token",
    induction: "attention to what followed earlier copies",
    copying: "raises the logits of what it attends to",
  };
  const LETTERS = { Q: "queries", K: "keys", V: "values" };
  const grids = [];
  const composed = [];

  function cell(heads) {
    if (window.innerWidth >= 640) return Math.max(0.7, Math.min(2.4, 12 / heads));
    const across = window.innerWidth / 2 - 54 - heads; // two grids side by side, minus margins, labels and gaps
    return Math.max(0.5, Math.min(1.2, across / 16 / heads));
  }


  function make() {
    const { scores, composition, note } = data.circuits;
    host.append(element("p", { class: "lead", text: "The first scores are mean attention weights on repeated random tokens, so they do not depend on the prompt. " + (scores.includes("copying") ? "Copying is computed from the parameters (the eigenvalues of W_u W_o W_v W_e). " : "") + "Below each score are its strongest heads, as layer.head." }));
    const several = element("div", { class: "several" });
    for (const name of scores) {
      const [layers, heads] = arrays[`scores.${name}`].shape;
      const signedScore = name === "copying";
      const grid = headGrid({
        title: name[0].toUpperCase() + name.slice(1),
        note: MEANING[name],
        layers,
        heads,
        cell: cell(heads),
        describe: (l, h) => `Layer ${l}, head ${h}: ${name} ${at(`scores.${name}`, l, h).toFixed(3)}`,
        draw: (td, l, h) => {
          const v = at(`scores.${name}`, l, h);
          paint(td, signedScore ? ofSigned(v, 1) : ofWeight(v));
        },
      });
      grids.push(grid);
      several.append(element("div", {}, element("div", { class: "wide" }, grid.table), ranking(headsByScore(name).slice(0, 3), 1, { short: true, text: (v) => v.toFixed(2) })));
    }
    const scales = element("div", { class: "beside" }, element("div", { class: "legend", "data-scale": "weight" }), element("div", { class: "legend", "data-scale": "signed" }));
    host.append(scales, several);
    if (note) host.append(element("p", { class: "note", text: note }));
    if (!composition.length) return;
    const block = element("div", { class: "several" });
    for (const letter of composition) {
      const [layers, heads] = arrays[`composition.${letter}`].shape;
      const most = largest(`composition.${letter}`);
      const value = (l, h) => (l < state.layer ? at(`composition.${letter}`, l, h, state.layer, state.head) : at(`composition.${letter}`, state.layer, state.head, l, h));
      const grid = headGrid({
        title: `${letter}-composition`,
        note: `through ${LETTERS[letter]}; at most ${most.toFixed(2)}`,
        layers,
        heads,
        cell: cell(heads),
        describe: (l, h) =>
          l === state.layer
            ? `Layer ${l}, head ${h}`
            : `Layer ${l}, head ${h}, ${l < state.layer ? "read by" : "reading"} layer ${state.layer}, head ${state.head}: ${value(l, h).toFixed(3)}`,
        draw: (td, l, h) => paint(td, l === state.layer ? ofWeight(0) : shade("weight", value(l, h) / most)),
      });
      composed.push(grid);
      block.append(element("div", { class: "wide" }, grid.table));
    }
    host.append(element("h3", { id: "composition-title" }), element("p", { class: "lead", text: "How much a later head reads of what an earlier one writes, from the parameters alone. Above the selected head's row are the heads that it reads, below it those that read it." }), block);
  }

  function repaint(changes) {
    if (!available("circuits", host, changes)) return;
    if (!changes) make();
    const anew = !changes || changes.theme;
    for (const grid of grids) anew ? grid.repaint() : grid.mark();
    const chosen = changes && (changes.layer !== undefined || changes.head !== undefined);
    for (const grid of composed) anew || chosen ? grid.repaint() : grid.mark();
    if (composed.length) document.getElementById("composition-title").textContent = `Composition with layer ${state.layer}, head ${state.head}`;
    if (!anew) return;
    legend(host.querySelector("[data-scale=weight]"), { label: "Scores from 0 to 1, colors by their square root" });
    const ofSign = host.querySelector("[data-scale=signed]");
    if (data.circuits.scores.includes("copying")) legend(ofSign, { scale: "signed", most: 1, label: "Copying from −1 to 1" });
    else ofSign.remove();
  }
  return { repaint };
})();
