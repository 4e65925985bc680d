# An overlay port: vcpkg install hora --overlay-ports=packaging/vcpkg. Untried: no vcpkg was at hand.
set(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../..")
vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES torch HORA_TORCH)
vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${features} -DHORA_TESTS=OFF -DHORA_BENCH=OFF -DHORA_EXAMPLES=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/hora)
vcpkg_copy_tools(TOOL_NAMES horarun AUTO_CLEAN)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
# No licence has been chosen yet.
set(VCPKG_POLICY_SKIP_COPYRIGHT_CHECK enabled)
