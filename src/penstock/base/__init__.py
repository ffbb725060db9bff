"""Values and pure functions that everything else uses: trees, specs, errors, random numbers, arguments."""
