// SPDX-License-Identifier: Apache-2.0
// The page itself: controls, the view in the address, sentences where something is missing.

const part = (id) => document.getElementById(id);

function say(text) {
  part("said").textContent = text;
  part("said").hidden = !text;
}

const hex = (color) => `#${color.map((x) => Math.round(x * 255).toString(16).padStart(2, "0")).join("")}`;
const rgb = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16) / 255);

// #view=eye, right, up, back, vertical angle in degrees, distance of the point that is gone around
function viewOfAddress(text) {
  const numbers = (/^#view=([-+.,e\d]+)$/.exec(text) || ["", ""])[1].split(",").map(Number);
  if (numbers.length !== 14 || !numbers.every(Number.isFinite)) return null;
  const [eye, right, up, back] = [0, 3, 6, 9].map((at) => numbers.slice(at, at + 3));
  const target = add(eye, back, -numbers[13]);
  return { eye, axes: [right, up, back], fov: (numbers[12] * Math.PI) / 180, target };
}

function addressOf(camera) {
  const numbers = [...camera.eye, ...camera.axes.flat(), (camera.fov * 180) / Math.PI, camera.distance()];
  return `#view=${numbers.map((x) => Number(x.toPrecision(7))).join(",")}`;
}

// A length of 1, 2 or 5 times a power of ten, in meters, that is at most so many pixels wide at the target.
function drawScale(camera, meters, canvas) {
  const perPixel = (meters * 2 * Math.tan(camera.fov / 2) * camera.distance()) / canvas.clientHeight;
  const most = 150 * perPixel, ten = 10 ** Math.floor(Math.log10(most));
  const length = ten * (most >= 5 * ten ? 5 : most >= 2 * ten ? 2 : 1);
  const units = [[1000, "km"], [1, "m"], [0.01, "cm"], [0.001, "mm"]];
  const [unitOf, name] = units.find(([meters]) => length >= meters) || units[3];
  const [bar, text] = part("scale").children;
  bar.style.width = `${length / perPixel}px`;
  text.textContent = `${Number((length / unitOf).toPrecision(3))} ${name}`;
}

async function start() {
  if (typeof DecompressionStream === "undefined") return;  // the page says already what it needs
  say("");
  const scene = JSON.parse(part("scene").textContent), canvas = part("picture");
  const arrays = await arraysOf(scene, part("block").textContent);
  const source = fragmentShader(scene, arrays, part("shader").textContent);
  const picture = new Picture(canvas, scene, arrays, source), drawing = new Drawing(picture);
  const camera = new Camera(scene.view, scene.up);
  const follow = () => {
    const view = viewOfAddress(location.hash);
    if (view) Object.assign(camera, view);
  };
  follow();
  window.addEventListener("hashchange", follow);
  part("background").value = hex(scene.background);
  part("quality").addEventListener("change", (event) => (drawing.quality = Number(event.target.value)));
  part("start").addEventListener("click", () => camera.home());
  part("link").addEventListener("click", () => (location.hash = addressOf(camera)));
  part("bar").hidden = false;
  part("scale").hidden = !scene.meters;
  const move = control(canvas, camera, () => part("mode").value === "fly");
  let lost = false;
  canvas.addEventListener("webglcontextlost", (event) => {
    event.preventDefault();  // else the browser does not give it back
    lost = true;
    canvas.dataset.state = "lost";
    say("The browser has taken the graphics memory away. It goes on when the browser gives it back; if it does not, " +
      "reload the page.");
  });
  canvas.addEventListener("webglcontextrestored", () => {
    lost = false;
    say("");
    picture.build();
    drawing.forget();
  });
  const frame = () => {
    move();
    if (!lost) drawing.step(camera.seen(), rgb(part("background").value));
    if (scene.meters) drawScale(camera, scene.meters, canvas);
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

start().catch((error) => say(error.message));
