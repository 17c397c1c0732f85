// SPDX-License-Identifier: Apache-2.0
// What a library was built with, for `python -m nerfkit doctor`: read through ctypes, so it is there even if no op is.
// schema, a hash of schema.cpp, is looked for in the file itself, before anything is loaded (nerfkit/ops/native.py).

extern "C" __attribute__((visibility("default"))) const char* nerfkit_build_info() {
  return "compiler=" BUILD_COMPILER "\ntorch=" BUILD_TORCH "\ntargets=" BUILD_TARGETS "\nschema=" BUILD_SCHEMA;
}
