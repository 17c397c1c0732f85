// SPDX-License-Identifier: Apache-2.0
// The part of the shader that differs from scene to scene: sizes, and networks whose weights are literals.
// Values go through it in groups of four; what a layer lacks to whole groups is 0.

const TABLE_WIDTH = 2048;
const groups = (count) => Math.ceil(count / 4), indices = (count) => [...Array(groups(count)).keys()];

function literal(value) {
  const text = String(Number(value.toPrecision(9)));  // nine digits are a 32-bit number's all
  return /[.e]/.test(text) ? text : `${text}.0`;
}

const vector = (values) => `vec4(${values.map(literal).join(",")})`;

// [rows, columns] of a layer as a function (row, column) that is 0 outside.
function entries({ values, shape: [rows, columns] }) {
  return (row, column) => (row < rows && column < columns ? values[row * columns + column] : 0);
}

// Statements that put a layer of some inputs into groups of an output: `inputs` are [name, width] side by side, of the
// output are `rows` from number `first` on. `start` is what is added, by group; the layer's bias otherwise. `cut`
// gives 0 for what is below. Indices are constants everywhere: in a loop, arrays would be in memory, and slow. Row by
// row: of a product with a matrix, a browser that draws on the CPU would keep every part in memory.
function product(layer, inputs, output, { first = 0, rows = layer.shape[0], start = null, cut = false } = {}) {
  const at = entries(layer), bias = layer.shape[1] - 1, four = [0, 1, 2, 3];
  const sum = (row, begin) => {
    if (row >= rows) return "0.0";
    const terms = [begin || literal(at(first + row, bias))];
    let before = 0;
    for (const [name, width] of inputs) {
      for (const c of indices(width)) {
        const weights = four.map((i) => (4 * c + i < width ? at(first + row, before + 4 * c + i) : 0));
        if (weights.some((weight) => weight !== 0)) terms.push(`dot(${vector(weights)}, ${name}[${c}])`);
      }
      before += width;
    }
    return terms.join(" + ");
  };
  return indices(rows).map((r) => {
    const sums = `vec4(${four.map((i) => sum(4 * r + i, start && `${start}[${r}].${"xyzw"[i]}`)).join(",\n    ")})`;
    return `  ${output}[${r}] = ${cut ? `max(${sums}, 0.0)` : sums};`;
  }).join("\n");
}

// Every level's features, those of fewer than four side by side in one group.
function featuresOf(scene, width) {
  const calls = scene.levels.map(({ cells, first, hashed }) =>
    `${hashed ? "hashed" : "dense"}_level(p, ${cells}, ${first}).${"xyzw".slice(0, width)}`);
  const lines = indices(calls.length * width).map((group) => {
    const parts = calls.slice((4 / width) * group, (4 / width) * (group + 1));
    return `  f[${group}] = vec4(${[...parts, ...Array(4 - parts.length * width).fill("0.0")].join(", ")});`;
  });
  return `void features(vec3 p, out vec4 f[CHANNELS]) {
${lines.join("\n")}
}`;
}

function convolutionOf({ values, shape: [channels] }) {
  const column = (group, tap) =>
    vector([0, 1, 2, 3].map((i) => (4 * group + i < channels ? values[(4 * group + i) * 4 + tap] : 0)));
  const lines = indices(channels).map((g) =>
    `  encoded[${g}] = ${column(g, 0)} * before[${g}] + ${column(g, 1)} * here[${g}] + ${column(g, 2)} * next[${g}]
    + ${column(g, 3)};`);
  return `void encode(vec4 before[CHANNELS], vec4 here[CHANNELS], vec4 next[CHANNELS], out vec4 encoded[CHANNELS]) {
${lines.join("\n")}
}`;
}

// The LLTM. Its tanh is written out, of a value that is cut off where that has no more to tell: with infinite parts it
// would be NaN.
function stepOf(gates, channels, units) {
  const inputs = [["before", units], ["encoded", channels]];
  const gate = (number, name) => product(gates, inputs, name, { first: number * units, rows: units });
  return `void pass_gates(vec4 i, vec4 o, vec4 g, out vec4 state, inout vec4 cell) {
  cell += (max(g, 0.0) + exp(min(g, 0.0)) - 1.0) / (1.0 + exp(-i));
  vec4 e = exp(-2.0 * clamp(cell, -10.0, 10.0));
  state = (1.0 - e) / ((1.0 + e) * (1.0 + exp(-o)));
}

void step_along(vec4 encoded[CHANNELS], inout vec4 state[STATE], inout vec4 cell[STATE]) {
  vec4 before[STATE] = state, i[STATE], o[STATE], g[STATE];
${gate(0, "i")}
${gate(1, "o")}
${gate(2, "g")}
${indices(units).map((n) => `  pass_gates(i[${n}], o[${n}], g[${n}], state[${n}], cell[${n}]);`).join("\n")}
}`;
}

function colorOf(arrays, hidden, channels, units, encoded) {
  const inputs = [["hidden", hidden]];
  if (encoded) inputs.push(["encoded", channels]);
  if (units) inputs.push(["state", units]);
  const layers = Object.keys(arrays).filter((name) => name.startsWith("color_"));
  const alongRay = units ? ", vec4 state[STATE]" : "";
  const parameters = `vec4 direction[HIDDEN], vec4 hidden[LATENT], vec4 encoded[CHANNELS]${alongRay}`;
  const lines = ["  vec4 x[HIDDEN], y[HIDDEN];", product(arrays.mixed, inputs, "x", { start: "direction", cut: true })];
  layers.forEach((name, n) => {
    const inputs = [["x", arrays[name].shape[1] - 1]];
    lines.push(product(arrays[name], inputs, "y", { cut: n < layers.length - 1 }), "  x = y;");
  });
  return `vec3 color_of(${parameters}) {
${lines.join("\n")}
  return 1.0 / (1.0 + exp(-y[0].xyz));
}`;
}

// `crop`, if there is one, takes a position to where the crop is -1 to 1 along each axis: three rows of four numbers.
function croppedOf(crop) {
  const row = (n) => `dot(${vector(crop.slice(4 * n, 4 * n + 4))}, vec4(p, 1.0))`;
  const test = crop ? `any(greaterThan(abs(vec3(${row(0)}, ${row(1)}, ${row(2)})), vec3(1.0)))` : "false";
  return `bool is_cropped(vec3 p) {\n  return ${test};\n}`;
}

function fragmentShader(scene, arrays, template) {
  const hidden = arrays.density.shape[0], channels = arrays.convolution.shape[0];
  const units = arrays.gates ? arrays.gates.shape[0] / 3 : 0;
  const corner = (values) => `vec3(${values.map(literal).join(",")})`;
  const [low, high] = scene.box;
  const sizes = {
    TABLE_WIDTH, MAX_ENTRIES: scene.max_entries, CHANNELS: groups(channels), LATENT: groups(hidden),
    HIDDEN: groups(Math.max(arrays.mixed.shape[0], arrays.color_0.shape[0])),
    CELLS: `ivec3(${arrays.distances.shape.join(",")})`, LOW: corner(low), HIGH: corner(high),
    STEP: literal(scene.step_size), NEAR: literal(scene.near), FAR: literal(scene.far), CONE: literal(scene.cone_angle),
    THRESHOLD: literal(scene.threshold), MOST_PASSED: literal(-Math.log(scene.least_transmittance)),
  };
  const all = (count, value) => `vec4[](${indices(count).map(() => `vec4(${literal(value)})`).join(",")})`;
  sizes.NO_FEATURES = all(channels, 0);
  if (units) Object.assign(sizes, { STATE: groups(units), NO_STATE: all(units, 0) });
  if (scene.kind === "contracted") Object.assign(sizes, { CONTRACTED: "", INTERVALS: arrays.edges.shape[0] - 2 });
  const layer = (name, from, inputs, to, output, array) => `void ${name}(vec4 ${from}, out vec4 ${to}) {
${product(array, inputs, output)}
}`;
  const parts = [
    featuresOf(scene, arrays.table.shape[1]),
    `void density_layer(vec4 f[CHANNELS], out vec4 hidden[LATENT]) {
${product(arrays.density, [["f", channels]], "hidden", { cut: true })}
}`,
    `float log_density(vec4 hidden[LATENT]) {
  vec4 x[1];
${product(arrays.log_density, [["hidden", hidden]], "x")}
  return x[0].x;
}`,
    layer("direction_layer", "sh[4]", [["sh", 16]], "x[HIDDEN]", "x", arrays.direction),
    convolutionOf(arrays.convolution),
    units ? stepOf(arrays.gates, channels, units) : "",
    colorOf(arrays, hidden, channels, units, scene.encoded),
    croppedOf(scene.crop),
  ];
  const defines = Object.entries(sizes).map(([name, value]) => `#define ${name} ${value}`);
  const head = ["#version 300 es", "precision highp float;", "precision highp int;", ...defines].join("\n");
  return `${head}\n${template.replace(/^FEATURES$/m, () => parts.join("\n\n"))}`;
}
