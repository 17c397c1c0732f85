// SPDX-License-Identifier: Apache-2.0
// The block of the page: base64 of deflated arrays, one behind the other, as the scene's JSON lists them.

const KINDS = { f4: Float32Array, u1: Uint8Array, i1: Int8Array };

async function arraysOf(scene, text) {
  const binary = atob(text), packed = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; ++i) packed[i] = binary.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = await new Response(stream).arrayBuffer(), arrays = {};
  let start = 0;
  for (const [name, [kind, shape]] of Object.entries(scene.arrays)) {
    const size = shape.reduce((product, side) => product * side, 1);
    const values = new KINDS[kind](bytes, start, size);
    arrays[name] = { values, shape };
    start += values.byteLength;
  }
  return arrays;
}
