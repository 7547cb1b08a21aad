"""Does not use TensorFlow at all."""

import numpy as np
import results

x = np.arange(10.0)
results.save([np.polyfit(x, 3 * x + 1, 1)])
