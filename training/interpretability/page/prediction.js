// What each layer predicts: the likeliest tokens at the selected token, and the likeliest one at each token.
const prediction = (() => {
  const host = document.getElementById("prediction-body");
  let wide = null;
  const word = (row, t, k) => data.words[at("prediction.tokens", row, t, k)];

  function make() {
    const { rows, of, note } = data.prediction;
    const lead = document.getElementById("prediction-lead");
    lead.textContent =
      rows.length > 1
        ? `The last norm and the unembedding, applied after each layer (the logit lens). ${note}`
        : note;
    const answers = element("div", { id: "answers" });
    host.append(answers, element("div", { class: "legend" }));
    if (rows.length === 1) return;
    wide = tokenTable({
      title: "The likeliest next token, by layer and token",
      note: "Colored by probability; hover over or tap a token to see the others.",
      text: of,
      tokens: data.texts[of],
      rows,
      draw: (td, row, t) => {
        td.textContent = word(row, t, 0);
        paint(td, ofWeight(at("prediction.p", row, t, 0)));
      },
      describe: (row, t) => {
        const k = arrays["prediction.tokens"].shape[2];
        const lines = Array.from({ length: k }, (_, i) => `${quoted(word(row, t, i))} ${percent(at("prediction.p", row, t, i))}`);
        return `${rows[row]}, after ${quoted(data.texts[of][t])} (${t})\n${lines.join("\n")}`;
      },
    });
    host.append(wide.host);
  }

  function repaint(changes) {
    if (!available("prediction", host, changes)) return;
    if (!changes) make();
    const { of, rows } = data.prediction;
    const t = tokenOf(of);
    const k = arrays["prediction.tokens"].shape[2];
    const body = element("tbody");
    rows.forEach((name, row) => {
      const line = element("tr", {}, element("th", { scope: "row", text: name }));
      for (let i = 0; i < k; i++) {
        const p = at("prediction.p", row, t, i);
        const td = element("td", { class: ["", "", "", "fourth", "fifth"][i], title: `${word(row, t, i)} ${percent(p)}` }, word(row, t, i), " ", element("small", { text: percent(p) }));
        paint(td, ofWeight(p));
        line.append(td);
      }
      body.append(line);
    });
    const caption = element("caption", {}, rows.length > 1 ? "After " : "At ", element("span", { class: "mono", text: data.texts[of][t] }), ` (token ${t})`);
    const last = rows.length - 1;
    const follows = at("prediction.follows", t);
    if (!Number.isNaN(follows)) {
      caption.append(element("small", {}, "The text continues with ", element("span", { class: "mono", text: data.texts[of][t + 1] }), `, which the model gives ${percent(follows)}.`));
    }
    const heads = element("tr", {}, element("th", { scope: "col", text: "" }));
    ["likeliest", "second", "third", "fourth", "fifth"].slice(0, k).forEach((text) => heads.append(element("th", { scope: "col", class: text, text })));
    const table = element("table", { class: "answers" }, caption, element("thead", {}, heads), body);
    document.getElementById("answers").replaceChildren(table);
    legend(host.querySelector(".legend"), { label: "Probabilities from 0 to 1, colors by their square root" });
    if (!wide) return;
    if (!changes || changes.theme) wide.repaint();
    else wide.mark();
  }
  return { repaint, answer: (t) => word(data.prediction.rows.length - 1, t, 0) };
})();
