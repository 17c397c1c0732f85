// SPDX-License-Identifier: Apache-2.0
// A camera that goes around a point, or flies; what mouse, fingers and keys do to it.

const add = (a, b, factor = 1) => a.map((x, i) => x + factor * b[i]);
const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
const scaled = (a, factor) => a.map((x) => x * factor);
const unit = (a) => scaled(a, 1 / Math.hypot(...a));

// A vector turned about an axis of length 1.
function turned(vector, axis, angle) {
  const c = Math.cos(angle), s = Math.sin(angle);
  return add(add(scaled(vector, c), cross(axis, vector), s), axis, dot(axis, vector) * (1 - c));
}

const STEEPEST = 0.995;  // cosine between the viewing axis and up
const NEAREST = 1e-3;  // to the point that is gone around, in distances of the start view

class Camera {
  // `start` is {eye, axes: [right, up, back], fov: vertical [radians], target}.
  constructor(start, up) {
    this.start = start;
    this.up = up;
    this.home();
  }

  home() {
    const { eye, axes, fov, target } = this.start;
    Object.assign(this, { eye: [...eye], axes: axes.map((axis) => [...axis]), fov, target: [...target] });
    this.reach = this.distance();
  }

  seen() {
    return { eye: this.eye, axes: this.axes, fov: this.fov };
  }

  distance() {
    return Math.hypot(...add(this.eye, this.target, -1));
  }

  // Turn by angles around `centre`: the target in orbit, the eye itself in flight.
  rotate(sideways, upwards, centre) {
    const turn = (axis, angle) => {
      this.axes = this.axes.map((vector) => unit(turned(vector, axis, angle)));
      this.eye = add(centre, turned(add(this.eye, centre, -1), axis, angle));
      this.target = add(centre, turned(add(this.target, centre, -1), axis, angle));
    };
    turn(this.up, sideways);
    const after = dot(turned(this.axes[2], this.axes[0], upwards), this.up);
    if (Math.abs(after) < Math.max(STEEPEST, Math.abs(dot(this.axes[2], this.up)))) turn(this.axes[0], upwards);
  }

  shift(vector) {
    this.eye = add(this.eye, vector);
    this.target = add(this.target, vector);
  }

  // Shift with what lies at the target by pixels of a picture so high.
  drag(x, y, height) {
    const size = (2 * Math.tan(this.fov / 2) * this.distance()) / height;
    this.shift(add(scaled(this.axes[0], -x * size), this.axes[1], y * size));
  }

  zoom(factor) {
    const distance = Math.max(this.distance() * factor, NEAREST * this.reach);
    this.eye = add(this.target, this.axes[2], distance);
  }

  fly(right, up, back, share) {
    const way = add(add(scaled(this.axes[0], right), this.up, up), this.axes[2], back);
    this.shift(scaled(way, share * this.reach));
  }
}

const KEYS = { KeyW: [0, 0, -1], KeyS: [0, 0, 1], KeyA: [-1, 0, 0], KeyD: [1, 0, 0], KeyQ: [0, -1, 0], KeyE: [0, 1, 0],
  ArrowUp: [0, 0, -1], ArrowDown: [0, 0, 1], ArrowLeft: [-1, 0, 0], ArrowRight: [1, 0, 0] };
const FLIGHT = 0.5;  // distances of the start view a second
const TURN = 0.006;  // radians a pixel

// Have a canvas move the camera; `flies` says whether it flies now. What is returned moves it by the keys held down.
function control(canvas, camera, flies) {
  const fingers = new Map(), held = new Set();
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, apart: Math.hypot(a.x - b.x, a.y - b.y) };
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    canvas.focus();
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    event.preventDefault();
  });
  canvas.addEventListener("pointermove", (event) => {
    const was = fingers.get(event.pointerId), here = { x: event.clientX, y: event.clientY };
    if (!was) return;
    const two = fingers.size === 2 ? spread() : null, x = here.x - was.x, y = here.y - was.y;
    fingers.set(event.pointerId, here);
    if (two) {
      const now = spread();
      camera.drag(now.x - two.x, now.y - two.y, canvas.clientHeight);
      if (now.apart > 0 && two.apart > 0) camera.zoom(two.apart / now.apart);
    } else if (fingers.size === 1 && (event.shiftKey || event.buttons & 6)) {
      camera.drag(x, y, canvas.clientHeight);
    } else if (fingers.size === 1) {
      const sign = flies() ? 1 : -1;
      camera.rotate(sign * x * TURN, sign * y * TURN, flies() ? camera.eye : camera.target);
    }
  });
  for (const name of ["pointerup", "pointercancel"])
    canvas.addEventListener(name, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  canvas.addEventListener("wheel", (event) => {
    const lines = event.deltaY * (event.deltaMode === 1 ? 30 : 1);
    if (flies()) camera.fly(0, 0, Math.sign(lines), 0.05);
    else camera.zoom(Math.exp(0.001 * Math.min(Math.max(lines, -500), 500)));
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (!KEYS[event.code] || event.ctrlKey || event.metaKey || event.altKey) return;
    held.add(event.code);
    event.preventDefault();
  });
  canvas.addEventListener("keyup", (event) => held.delete(event.code));
  canvas.addEventListener("blur", () => held.clear());
  let last = performance.now();
  return () => {
    const now = performance.now(), seconds = Math.min((now - last) / 1000, 0.1);
    last = now;
    for (const code of held) {
      if (flies()) camera.fly(...KEYS[code], FLIGHT * seconds);
      else camera.rotate(KEYS[code][0] * seconds, KEYS[code][2] * seconds, camera.target);
    }
  };
}
