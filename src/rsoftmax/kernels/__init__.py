"""Raw rows in, raw rows out: what makes the mappings fast lives here and knows neither dims nor masks."""
