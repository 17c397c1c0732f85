// SPDX-License-Identifier: Apache-2.0
// A ray through the field: intervals in occupied cells, features, density, the stages along the ray, color.
// What is written in capitals, and the networks, networks.js puts before this.

uniform highp usampler3D distances;  // [X, Y, Z] cells to the next occupied one
uniform highp isampler2D table;  // 8-bit entries, in steps of their level and channel
uniform vec3 eye;
uniform mat3 turn;  // from the camera's axes to the scene's: x right, y up, it looks down -z
uniform vec3 lens;  // middle of the image and focal length [pixels]
uniform vec3 background;
out vec4 pixel;

const float MOST_THICKNESS = 50.0;

// Where value number `i` of a long row is. A browser that draws on the CPU shifts one number at a time: it divides.
ivec2 place_of(int i) {
  return ivec2(i & (TABLE_WIDTH - 1), int(float(i) * (1.0 / float(TABLE_WIDTH))));
}

vec4 entry(int row) {
  return vec4(texelFetch(table, place_of(row), 0));
}

// Of a level with so many cells a side, whose first row is known; `p` in [0, 1].
vec4 dense_level(vec3 p, int cells, int first) {
  vec3 s = p * float(cells);
  ivec3 v = ivec3(min(s, float(cells) - 0.5));
  vec3 u = s - vec3(v);
  int y = cells + 1, x = y * y, row = first + (v.x * y + v.y) * y + v.z;
  int far = row + x;
  return mix(mix(mix(entry(row), entry(row + 1), u.z), mix(entry(row + y), entry(row + y + 1), u.z), u.y),
             mix(mix(entry(far), entry(far + 1), u.z), mix(entry(far + y), entry(far + y + 1), u.z), u.y), u.x);
}

vec4 hashed_level(vec3 p, int cells, int first) {
  vec3 s = p * float(cells);
  ivec3 v = ivec3(min(s, float(cells) - 0.5));
  vec3 u = s - vec3(v);
  uint x = uint(v.x), y = uint(v.y) * 2654435761u, z = uint(v.z) * 805459861u;
  uint far_x = x + 1u, far_y = y + 2654435761u, far_z = z + 805459861u, most = uint(MAX_ENTRIES - 1);
#define AT(x, y, z) entry(first + int((x ^ y ^ z) & most))
  return mix(mix(mix(AT(x, y, z), AT(x, y, far_z), u.z), mix(AT(x, far_y, z), AT(x, far_y, far_z), u.z), u.y),
             mix(mix(AT(far_x, y, z), AT(far_x, y, far_z), u.z), mix(AT(far_x, far_y, z), AT(far_x, far_y, far_z), u.z),
                 u.y), u.x);
}

FEATURES

void harmonics(vec3 d, out vec4 sh[4]) {
  float x = d.x, y = d.y, z = d.z, xx = x * x, yy = y * y, zz = z * z;
  sh[0] = vec4(0.28209479177387814, -0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x);
  sh[1] = vec4(1.0925484305920792 * x * y, -1.0925484305920792 * y * z,
               0.9461746957575601 * zz - 0.31539156525252005, -1.0925484305920792 * x * z);
  sh[2] = vec4(0.5462742152960396 * (xx - yy), 0.5900435899266435 * y * (yy - 3.0 * xx),
               2.890611442640554 * x * y * z, 0.4570457994644657 * y * (1.0 - 5.0 * zz));
  sh[3] = vec4(0.3731763325901154 * z * (5.0 * zz - 3.0), 0.4570457994644657 * x * (1.0 - 5.0 * zz),
               1.445305721320277 * z * (xx - yy), 0.5900435899266435 * x * (3.0 * yy - xx));
}

// Cells to the next occupied one from a place in the grid, in cells.
int cells_left(vec3 place) {
  ivec3 cell = ivec3(clamp(place, vec3(0.0), vec3(CELLS) - 0.5));
  return int(texelFetch(distances, cell.zyx, 0).r);
}

#ifdef CONTRACTED

uniform highp sampler2D edges;  // distances at which intervals end

float edge(int k) {
  return texelFetch(edges, place_of(k), 0).r;
}

struct Ray {
  vec3 origin, direction;  // of the scene
  vec3 o, d;  // in half sides of the box, its middle at 0
  float speed, moment;
  int end;  // of the intervals
};

Ray ray_of(vec3 origin, vec3 direction) {
  vec3 o = (origin - (LOW + HIGH) * 0.5) / ((HIGH - LOW) * 0.5), d = direction / ((HIGH - LOW) * 0.5);
  vec3 magnitude = abs(d), moment = abs(cross(o, d));
  return Ray(origin, direction, o, d, max(magnitude.x, max(magnitude.y, magnitude.z)),
             max(moment.x, max(moment.y, moment.z)), INTERVALS);
}

vec3 contracted(vec3 u) {
  vec3 magnitude = abs(u);
  float largest = max(magnitude.x, max(magnitude.y, magnitude.z));
  return largest <= 1.0 ? u : u * ((2.0 - 1.0 / largest) / largest);
}

vec3 in_unit(Ray ray, vec3 position) {
  return clamp((contracted((position - (LOW + HIGH) * 0.5) / ((HIGH - LOW) * 0.5)) + 2.0) / 4.0, 0.0, 1.0);
}

// The first interval from number k on whose middle is in an occupied cell, from `start` to `stop`; k is then the next.
bool found(Ray ray, inout int k, out float start, out float stop) {
  for (; k < ray.end;) {
    start = edge(k);
    stop = edge(k + 1);
    float t = (start + stop) * 0.5;
    vec3 u = ray.d * t + ray.o;
    vec3 magnitude = abs(u), place = (contracted(u) + 2.0) * (vec3(CELLS) / 4.0);
    int left = cells_left(place);
    if (left == 0 && !is_cropped(ray.origin + ray.direction * t)) {
      ++k;
      return true;
    }
    // How far the cells are empty, and how fast a place moves, by its largest coordinate m: see the op's notes on
    // contracted rays. Where m falls, it is taken to fall to a half.
    vec3 part = fract(place), least = min(part, 1.0 - part);
    float room = (float(left - 1) + min(least.x, min(least.y, least.z))) * 4.0 / float(CELLS.x);
    float m = max(magnitude.x, max(magnitude.y, magnitude.z));
    vec3 later = abs(u + ray.d * (1e-3 * t));
    bool falls = max(later.x, max(later.y, later.z)) < m;
    float n = max(falls ? 0.5 * m : m, 1.0);
    float speed = min(((2.0 - 1.0 / n) * ray.moment + ray.speed) / (n * n), 4.0 / 3.0 * ray.speed);
    float far = room / speed;
    if (falls && m > 1.0) far = min(far, (m - n) / ray.speed);
    float reached = t + 0.99 * far;
    // The number of the interval that is there: steps of one length, then in proportion to the distance.
    float equal = max(min(reached, STEP / max(CONE, 1e-9)) - NEAR, 0.0) / STEP;
    float grown = reached * CONE > STEP ? log(reached / max(NEAR, STEP / CONE)) / log(1.0 + CONE) : 0.0;
    k = max(k + 1, int(min(equal + grown, 1e6) - 0.01));
  }
  return false;
}

#else

struct Ray {
  vec3 origin, direction;  // of the scene
  vec3 o, d, pace;  // in cells, and intervals a cell
  float first, leave;  // middle of the first interval, where the ray leaves the box
};

Ray ray_of(vec3 origin, vec3 direction) {
  vec3 safe = mix(direction, vec3(1e-30), lessThan(abs(direction), vec3(1e-30)));
  vec3 low = (LOW - origin) / safe, high = (HIGH - origin) / safe, near = min(low, high), far = max(low, high);
  vec3 scale = vec3(CELLS) / (HIGH - LOW);
  return Ray(origin, direction, (origin - LOW) * scale, safe * scale, 1.0 / (safe * scale * STEP),
             max(max(near.x, near.y), max(near.z, NEAR)) + STEP * 0.5, min(min(far.x, far.y), min(far.z, FAR)));
}

vec3 in_unit(Ray ray, vec3 position) {
  return clamp((position - LOW) / (HIGH - LOW), 0.0, 1.0);
}

// The first interval from number k on whose middle is in an occupied cell, from `start` to `stop`; k is then the next.
bool found(Ray ray, inout int k, out float start, out float stop) {
  float t, steps;
  int left;
  do {
    t = ray.first + float(k) * STEP;
    vec3 place = ray.o + ray.d * t;
    left = cells_left(place);
    if (left == 0 && is_cropped(ray.origin + ray.direction * t)) left = 1;
    // To where cells may be occupied: along each axis to the middle of the cell, and on.
    vec3 way = (floor(place) + 0.5 - place) * ray.pace + abs(ray.pace) * (float(left) - 0.5);
    steps = ceil(min(min(way.x, min(way.y, way.z)), 1e6) * 0.99999 - 0.01);
    k += left == 0 ? 1 : int(max(steps, 1.0));
  } while (left != 0 && t < ray.leave);
  start = t - STEP * 0.5;
  stop = t + STEP * 0.5;
  return t < ray.leave;
}

#endif

vec4 seen(vec3 origin, vec3 direction) {  // color, not over a background, and opacity
  Ray ray = ray_of(origin, direction);
  vec4 color = vec4(0.0);
  float start, stop;
  int k = 0;
  bool is_left = found(ray, k, start, stop);  // an interval to look at
  if (!is_left) return color;
  vec4 sh[4], of_direction[HIDDEN], before[CHANNELS], here[CHANNELS], next[CHANNELS], encoded[CHANNELS];
  vec4 hidden_here[LATENT], hidden_next[LATENT];
  harmonics(direction, sh);
  direction_layer(sh, of_direction);
  before = here = NO_FEATURES;
#ifdef STATE
  vec4 state[STATE] = NO_STATE, cell[STATE] = NO_STATE;
#endif
  float passed = 0.0, shown = 0.0;  // optical thickness of all intervals so far, and of those that count
  float thickness_here = -1.0, thickness_next;
  bool goes_on;
  // The convolution of a sample needs the next one, so each is shaded when that is found, or when there is none.
  do {
    bool counts = false;
    do {
      goes_on = is_left;
      if (goes_on) {
        features(in_unit(ray, origin + direction * ((start + stop) * 0.5)), next);
        density_layer(next, hidden_next);
        thickness_next = min(exp(min(log_density(hidden_next), 30.0)) * (stop - start), MOST_THICKNESS);
        passed += thickness_next;
        counts = !(1.0 - exp(-thickness_next) < THRESHOLD);
        is_left = passed < MOST_PASSED && found(ray, k, start, stop);
      }
    } while (goes_on && !counts);
    if (!goes_on) next = NO_FEATURES;
    if (thickness_here >= 0.0) {
      encode(before, here, next, encoded);
#ifdef STATE
      step_along(encoded, state, cell);
      vec3 rgb = color_of(of_direction, hidden_here, encoded, state);
#else
      vec3 rgb = color_of(of_direction, hidden_here, encoded);
#endif
      float weight = exp(-shown) * (1.0 - exp(-thickness_here));
      color += weight * vec4(rgb, 1.0);
      shown += thickness_here;
    }
    before = here;
    here = next;
    hidden_here = hidden_next;
    thickness_here = thickness_next;
  } while (goes_on);
  return color;
}

void main() {
  vec3 direction = normalize(turn * vec3((gl_FragCoord.xy - lens.xy) / lens.z, -1.0));
  vec4 color = seen(eye, direction);
  pixel = vec4(clamp(color.rgb + (1.0 - color.a) * background, 0.0, 1.0), 1.0);
}
