// SPDX-License-Identifier: Apache-2.0
// The canvas: the field drawn into a framebuffer, a few rows at a time, and that shown.

const CORNERS = `#version 300 es
void main() {
  gl_Position = vec4(vec2(gl_VertexID & 1, gl_VertexID >> 1) * 4.0 - 1.0, 0.0, 1.0);
}`;

class Picture {
  // `source` is the fragment shader. The constructor throws an Error whose message a person can read.
  constructor(canvas, scene, arrays, source) {
    Object.assign(this, { canvas, scene, arrays, source });
    const attributes = { alpha: false, antialias: false, depth: false, preserveDrawingBuffer: true };
    this.gl = canvas.getContext("webgl2", attributes);
    if (!this.gl)
      throw new Error("This browser has no WebGL 2, or it is switched off: turn on graphics acceleration in its " +
        "settings, or open the file in another browser.");
    this.build();
  }

  // Everything that is on the GPU: at first, and after the browser has taken it away.
  build() {
    const { gl } = this;
    this.program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, CORNERS], [gl.FRAGMENT_SHADER, this.source]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(this.program, shader);
    }
    gl.linkProgram(this.program);
    if (!gl.getProgramParameter(this.program, gl.LINK_STATUS) && !gl.isContextLost()) {
      const logs = gl.getAttachedShaders(this.program).map((shader) => gl.getShaderInfoLog(shader));
      throw new Error("The graphics driver cannot compile this scene: open the file in another browser. " +
        `(${logs.join(" ")})`);
    }
    gl.useProgram(this.program);
    this.place = (name) => gl.getUniformLocation(this.program, name);
    const { table, distances, edges } = this.arrays, [x, y, z] = distances.shape;
    const entries = { 1: [gl.R8I, gl.RED_INTEGER], 2: [gl.RG8I, gl.RG_INTEGER], 4: [gl.RGBA8I, gl.RGBA_INTEGER] };
    this.rows("table", 0, table.values, table.shape[1], ...entries[table.shape[1]], gl.BYTE);
    this.texture("distances", 1, gl.TEXTURE_3D, () =>
      gl.texImage3D(gl.TEXTURE_3D, 0, gl.R8UI, z, y, x, 0, gl.RED_INTEGER, gl.UNSIGNED_BYTE, distances.values));
    if (edges) this.rows("edges", 2, edges.values, 1, gl.R32F, gl.RED, gl.FLOAT);
    this.small = { framebuffer: gl.createFramebuffer() };
    this.full = { framebuffer: gl.createFramebuffer() };
  }

  texture(name, unit, target, fill) {
    const { gl } = this;
    gl.activeTexture(gl.TEXTURE0 + unit);
    gl.bindTexture(target, gl.createTexture());
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    fill();
    for (const filter of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(target, filter, gl.NEAREST);
    gl.uniform1i(this.place(name), unit);
  }

  // A long row of `parts` values each, in lines of TABLE_WIDTH.
  rows(name, unit, values, parts, internal, format, type) {
    const { gl } = this, lines = Math.ceil(values.length / parts / TABLE_WIDTH);
    const padded = new values.constructor(lines * TABLE_WIDTH * parts);
    padded.set(values);
    this.texture(name, unit, gl.TEXTURE_2D, () =>
      gl.texImage2D(gl.TEXTURE_2D, 0, internal, TABLE_WIDTH, lines, 0, format, type, padded));
  }

  resize(target, width, height) {
    if (target.width === width && target.height === height) return;
    const { gl } = this;
    Object.assign(target, { width, height });
    gl.bindFramebuffer(gl.FRAMEBUFFER, target.framebuffer);
    gl.deleteRenderbuffer(target.colors);
    target.colors = gl.createRenderbuffer();
    gl.bindRenderbuffer(gl.RENDERBUFFER, target.colors);
    gl.renderbufferStorage(gl.RENDERBUFFER, gl.RGBA8, width, height);
    gl.framebufferRenderbuffer(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.RENDERBUFFER, target.colors);
  }

  // Draw `rows` of a target from number `first` on, as the camera sees the scene.
  draw(target, camera, background, first = 0, rows = target.height) {
    const { gl } = this, { width, height } = target;
    gl.bindFramebuffer(gl.FRAMEBUFFER, target.framebuffer);
    gl.viewport(0, 0, width, height);
    gl.enable(gl.SCISSOR_TEST);
    gl.scissor(0, first, width, rows);
    gl.uniform3fv(this.place("eye"), camera.eye);
    gl.uniformMatrix3fv(this.place("turn"), false, camera.axes.flat());
    gl.uniform3f(this.place("lens"), width / 2, height / 2, height / 2 / Math.tan(camera.fov / 2));
    gl.uniform3fv(this.place("background"), background);
    gl.drawArrays(gl.TRIANGLES, 0, 3);
    gl.disable(gl.SCISSOR_TEST);
  }

  copy(from, to) {
    const { gl } = this, into = to || this.canvas;
    gl.bindFramebuffer(gl.FRAMEBUFFER, to ? to.framebuffer : null);  // both: a browser forgets a canvas bound to one
    gl.bindFramebuffer(gl.READ_FRAMEBUFFER, from.framebuffer);
    const same = from.width === into.width && from.height === into.height;
    gl.blitFramebuffer(0, 0, from.width, from.height, 0, 0, into.width, into.height, gl.COLOR_BUFFER_BIT,
      same ? gl.NEAREST : gl.LINEAR);
  }

  // Something that `isDone` asks about what was drawn so far.
  mark() {
    const fence = this.gl.fenceSync(this.gl.SYNC_GPU_COMMANDS_COMPLETE, 0);
    this.gl.flush();
    return fence;
  }

  isDone(fence) {
    if (!fence) return true;  // of a context that is lost
    if (this.gl.clientWaitSync(fence, 0, 0) === this.gl.TIMEOUT_EXPIRED) return false;
    this.gl.deleteSync(fence);
    return true;
  }
}

// What is drawn when: the full picture, if that takes no longer than WHOLE_MILLISECONDS. Otherwise, while the camera
// moves, a small one, as large as is drawn in time; then the full one, rows by rows, over the small one.
class Drawing {
  constructor(picture) {
    this.picture = picture;
    this.pixels = 2 * FEWEST_PIXELS;  // that are drawn in FRAME_MILLISECONDS, about
    this.quality = 1;
    this.forget();
  }

  // After the context was restored, too: what was under way is gone.
  forget() {
    this.under = null;
    this.drawn = null;
    this.next = 0;
    this.changed = performance.now();
  }

  // To be called once a frame with the camera; it is copied only where something is drawn.
  step(camera, background) {
    const { picture } = this, { canvas, small, full } = picture, now = performance.now();
    if (this.under) {
      if (!picture.isDone(this.under.fence)) return;
      const took = Math.max(now - this.under.began, 1);  // with what passes until somebody asks: never nothing
      const could = (this.under.pixels * FRAME_MILLISECONDS) / took, { pixels } = this;
      if (took > FRAME_MILLISECONDS || this.under.pixels > 0.5 * pixels)
        this.pixels = Math.max(Math.min(Math.max(could, 0.5 * pixels), 2 * pixels), FEWEST_PIXELS);
      this.under = null;
    }
    const ratio = (window.devicePixelRatio || 1) * this.quality;
    const width = Math.min(Math.max(Math.round(canvas.clientWidth * ratio), 1), 2048);
    const height = Math.min(Math.max(Math.round(canvas.clientHeight * ratio), 1), 2048);
    const asked = JSON.stringify([camera, background, width, height]);
    if (asked !== this.drawn) {
      this.drawn = asked;
      this.changed = now;
      canvas.dataset.state = "moving";
      if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
      const isWhole = width * height * FRAME_MILLISECONDS <= this.pixels * WHOLE_MILLISECONDS;
      const share = isWhole ? 1 : Math.sqrt(this.pixels / (width * height));
      picture.resize(small, Math.max(Math.round(width * share), 16), Math.max(Math.round(height * share), 16));
      picture.draw(small, camera, background);
      picture.copy(small, null);
      this.next = isWhole ? height : 0;
      this.wait(now, small.width * small.height);
    } else if (this.next < height && now - this.changed > STILL_MILLISECONDS) {
      if (this.next === 0) {
        picture.resize(full, width, height);
        picture.copy(small, full);
      }
      const rows = Math.min(Math.ceil(this.pixels / width), height - this.next);
      picture.draw(full, camera, background, this.next, rows);
      picture.copy(full, null);
      this.next += rows;
      this.wait(now, width * rows);
    } else if (this.next >= height) {
      canvas.dataset.state = "still";
    }
  }

  wait(began, pixels) {
    this.under = { fence: this.picture.mark(), began, pixels };
  }
}

const FEWEST_PIXELS = 2 ** 13;  // at a time: with fewer, most of the time is none of theirs
const FRAME_MILLISECONDS = 80, WHOLE_MILLISECONDS = 330, STILL_MILLISECONDS = 150;
