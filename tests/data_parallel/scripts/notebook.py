#!/usr/bin/env python

# # Fuel efficiency

# In[1]:


import keras
import numpy as np
import results

print(keras.__version__)


# In[2]:


keras.utils.set_random_seed(92)
x = np.random.rand(48, 5)
y = 10 + x @ np.arange(5.0)
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile(loss="mae", optimizer=keras.optimizers.Adam(0.01))


# In[3]:


model(x[:3])
model.summary()


# In[4]:


history = model.fit(x, y, validation_split=0.2, epochs=2, verbose=0)
history = model.fit(x, y, validation_split=0.2, epochs=2, verbose=0)  # run twice
model.evaluate(x, y, verbose=0)
model.predict(x[:4], verbose=0).flatten()


# In[ ]:


results.save(model.get_weights(), **history.history)
