"""What builds and checks the documentation. Nothing of it is part of the package."""
