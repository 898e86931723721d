# A shim, so that node-gyp, prebuildify and node-gyp-build work on top of CMake: its single action runs cmake-js
# (scripts/build_native.mjs: cmake-js build --out build-cmake, because node-gyp owns build/), which describes
# everything in CMakeLists.txt and leaves build/Release/troupe.node.
{
  "targets": [
    {
      "target_name": "troupe",
      "type": "none",
      "actions": [
        {
          "action_name": "cmake_js",
          "message": "cmake-js --out build-cmake",
          "inputs": [],
          "outputs": ["<(PRODUCT_DIR)/troupe.node"],
          "action": ["node", "<(module_root_dir)/scripts/build_native.mjs"]
        }
      ]
    }
  ]
}
