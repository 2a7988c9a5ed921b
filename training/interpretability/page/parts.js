// Who wrote the answer, and what brings it back: signed numbers for each head, and for each layer and token.
const number = (v) => (Math.abs(v) >= 9.95 ? signed(v, 0) : signed(v, 1));
const cellOf = (heads) => (window.innerWidth < 640 ? Math.max(1.5, Math.min(2.2, (window.innerWidth / 16 - 6) / (heads + 1))) : 2.3);

const written = (() => {
  const host = document.getElementById("written-body");
  let grid = null;

  function make() {
    const [layers, heads] = arrays["written.heads"].shape;
    const t = () => tokenOf("prompt");
    grid = headGrid({
      title: "What each head and each MLP adds",
      layers,
      heads,
      cell: cellOf(heads),
      describe: (l, h) => `Layer ${l}, head ${h}: ${signed(at("written.heads", l, h, t()))}`,
      draw: (td, l, h) => fill(td, at("written.heads", l, h, t())),
      extra: {
        name: "MLP",
        describe: (l) => `Layer ${l}, MLP: ${signed(at("written.mlp", l, t()))}`,
        draw: (td, l) => fill(td, at("written.mlp", l, t())),
      },
    });
    host.append(
      element("p", { class: "lead", id: "written-lead" }),
      element("div", { class: "beside" }, element("div", { class: "wide" }, grid.table), element("div", { id: "written-side" })),
    );
  }

  let largestNow = 1;
  const fill = (td, value) => drawNumber(td, value, largestNow, number);

  function repaint(changes) {
    if (!available("written", host, changes)) return;
    if (!changes) make();
    const t = tokenOf("prompt");
    const [layers, heads] = arrays["written.heads"].shape;
    const parts = [];
    for (let l = 0; l < layers; l++) {
      for (let h = 0; h < heads; h++) parts.push({ name: `layer ${l}, head ${h}`, value: at("written.heads", l, h, t), layer: l, head: h });
      parts.push({ name: `layer ${l}, MLP`, value: at("written.mlp", l, t) });
    }
    largestNow = Math.max(...parts.map(({ value }) => Math.abs(value)));
    parts.push({ name: "embedding", value: at("written.embedding", t) });
    const rest = at("written.rest", t);
    if (rest) parts.push({ name: "biases", value: rest });
    const sum = parts.reduce((total, { value }) => total + value, 0);
    const lead = document.getElementById("written-lead");
    lead.replaceChildren("The residual stream is a sum, so the logit is one, too. After ", element("span", { class: "mono", text: data.texts.prompt[t] }), " the answer is ", element("b", { class: "mono", text: prediction.answer(t) }), `, whose logit is ${signed(sum, 1)} above the mean; the parts add up to that.`);
    const best = parts.sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, 12);
    const side = element("div", { class: "legend" });
    document.getElementById("written-side").replaceChildren(element("h3", { text: "The largest parts" }), ranking(best, Math.abs(best[0].value)), side);
    legend(side, { scale: "signed", most: largestNow, label: "Parts, from negative to positive" });
    if (!changes || changes.theme || changes.token) grid.repaint();
    else grid.mark();
  }
  return { repaint };
})();

const patched = (() => {
  const host = document.getElementById("patched-body");
  let grid = null;
  let table = null;
  const short = (v) => (Math.abs(v) < 0.005 ? "0" : v >= 0.995 ? v.toFixed(1) : v.toFixed(2).replace("0.", "."));

  function strip(title, tokens, others) {
    const host = element("div", { class: "strip" }, element("h4", { text: title }));
    tokens.forEach((token, i) => host.append(element("span", { class: token === others[i] ? "token" : "token differs", dir: "auto", text: token }), "\u200b"));
    return host;
  }

  function make() {
    const { other, score, ends, is_estimate } = data.patched;
    const [layers, heads] = arrays["patched.heads"].shape;
    const prompt = data.texts.prompt;
    const means = is_estimate ? "with all effects estimated by one gradient (attribution patching), since that many runs would take too long" : "each in a separate run";
    table = tokenTable({
      title: "The residual stream after each layer, at each token",
      text: "prompt",
      tokens: prompt.map((token, i) => (token === other[i] ? token : `${token} / ${other[i]}`)),
      rows: Array.from({ length: layers }, (_, l) => `layer ${l}`),
      narrow: true,
      draw: (td, l, t) => {
        const v = at("patched.tokens", l, t);
        td.textContent = short(v);
        paint(td, ofSigned(v, 1));
      },
      describe: (l, t) => `Layer ${l}, ${quoted(prompt[t])} (${t}): ${signed(at("patched.tokens", l, t), 3)}`,
    });
    grid = headGrid({
      title: "The output of each head, at all tokens",
      layers,
      heads,
      cell: cellOf(heads),
      describe: (l, h) => `Layer ${l}, head ${h}: ${signed(at("patched.heads", l, h), 3)}`,
      draw: (td, l, h) => drawNumber(td, at("patched.heads", l, h), 1, short),
    });
    host.append(
      element("p", { class: "lead", text: `A value from the first prompt's run replaces the same value in the second prompt's run, ${means}. 0 means no effect; 1 brings ${score} from ${signed(ends[1])}, as in the second run, all the way to ${signed(ends[0])}, as in the first.` }),
      strip("The first prompt", prompt, other),
      strip("The second prompt", other, prompt),
      element("div", { class: "legend" }),
      element("div", { class: "beside" }, table.host, element("div", { class: "wide" }, grid.table)),
    );
  }

  function repaint(changes) {
    if (!available("patched", host, changes)) return;
    if (!changes) make();
    if (!changes || changes.theme) {
      legend(host.querySelector(".legend"), { scale: "signed", most: 1, label: "Effects from −1 to 1" });
      table.repaint();
      grid.repaint();
    } else {
      table.mark();
      grid.mark();
    }
  }
  return { repaint };
})();
