package io.odradek.iceberg;

import java.nio.file.Paths;
import java.util.Map;
import org.apache.hadoop.fs.Path;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.hadoop.HadoopCatalog;
import org.apache.iceberg.hadoop.HadoopFileIO;

/**
 * A catalog of one table in a folder of a volume, for one driver. Its metadata are those of
 * Iceberg's own Hadoop catalog, which everybody can read; see {@link FencedFiles} for how it commits.
 *
 * <p>Properties: `warehouse`, the table's folder as a URL, and `staging`, the driver's folder.
 */
public final class FencedCatalog extends HadoopCatalog {
  private String location;
  private java.nio.file.Path staging;

  @Override
  public void initialize(String name, Map<String, String> properties) {
    location = properties.get("warehouse");
    staging = Paths.get(properties.get("staging"));
    super.initialize(name, properties);
  }

  @Override
  protected TableOperations newTableOps(TableIdentifier table) {
    return new FencedTable(new Path(location), new HadoopFileIO(getConf()), getConf(), staging);
  }

  @Override
  protected String defaultWarehouseLocation(TableIdentifier table) {
    return location;
  }
}
